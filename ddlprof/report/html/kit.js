"use strict";
/* What all charts of a page have in common: colours, figures as text, and the parts of ECharts' options. */
window.ddlprof = (function () {
  var FALLBACK = ["--class-1", "--class-2", "--class-3", "--class-4"];

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function classColour(name, index) {
    return colour("--class-" + name.replace(/_/g, "-")) || colour(FALLBACK[(index || 0) % FALLBACK.length]);
  }

  /* A figure with about four digits. */
  function number(value) {
    if (value === null || value === undefined || value !== value) return "not measured";
    var size = Math.abs(value);
    var digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : size >= 0.01 ? 3 : 5;
    return value.toLocaleString("en", { maximumFractionDigits: digits });
  }

  /* Rich text has a markup of its own; a name is to look as it is. */
  function plainText(text) {
    return String(text).replace(/\{(\w+)\|/g, "{ $1 |");
  }

  function short(text, most) {
    text = String(text);
    return text.length > most ? text.slice(0, most - 1) + "…" : text;
  }

  function lines(list) {
    return list.map(function (line) { return plainText(short(line, 80)); }).join("\n");
  }

  function bytes(value) {
    var units = ["B", "KiB", "MiB", "GiB", "TiB"], power = 0;
    while (value >= 1024 && power < units.length - 1) { value /= 1024; power += 1; }
    return number(value) + " " + units[power];
  }

  function still() {
    return window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  }

  function base(narrow) {
    return {
      animation: false,
      backgroundColor: "transparent",
      textStyle: { color: colour("--text"), fontFamily: colour("--font"), fontSize: 12 },
      aria: {
        enabled: true,
        label: { enabled: false },
        decal: { show: true, decals: decals() }
      },
      grid: { left: 8, right: narrow ? 8 : 24, top: 40, bottom: 8, containLabel: true },
      tooltip: tooltip()
    };
  }

  /* Patterns tell classes apart without their colours. */
  function decals() {
    var ink = colour("--decal");
    return [
      { symbol: "none" },
      { color: ink, dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: 0.785, symbolSize: 1 },
      { color: ink, symbol: "circle", symbolSize: 0.55, dashArrayX: [[8, 8], [0, 8, 8, 0]], dashArrayY: [6, 0] },
      { color: ink, dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: -0.785, symbolSize: 1 },
      { color: ink, dashArrayX: [1, 0], dashArrayY: [1, 5], rotation: 0, symbolSize: 1 },
      { color: ink, dashArrayX: [1, 0], dashArrayY: [1, 5], rotation: 1.5708, symbolSize: 1 },
      { color: ink, symbol: "rect", symbolSize: 0.6, dashArrayX: [[6, 6], [0, 6, 6, 0]], dashArrayY: [5, 0] }
    ];
  }

  function tooltip() {
    return {
      renderMode: "richText",
      confine: true,
      trigger: "item",
      backgroundColor: colour("--panel"),
      borderColor: colour("--line"),
      textStyle: { color: colour("--text"), fontSize: 12 }
    };
  }

  function axis(name, more) {
    return Object.assign({
      name: name,
      nameTextStyle: { color: colour("--muted") },
      axisLine: { lineStyle: { color: colour("--line") } },
      axisLabel: { color: colour("--muted"), hideOverlap: true },
      axisTick: { lineStyle: { color: colour("--line") } },
      splitLine: { lineStyle: { color: colour("--faint") } }
    }, more || {});
  }

  /* Below the drawing: what the axis along it shows. */
  function along(name, more) {
    return axis(name, Object.assign({ nameLocation: "middle", nameGap: 28 }, more || {}));
  }

  function legend(names, narrow) {
    return {
      type: "scroll", top: 4, left: 0, right: narrow ? 0 : 8, data: names, itemWidth: 18, itemHeight: 12,
      textStyle: { color: colour("--text") }, pageTextStyle: { color: colour("--muted") },
      pageIconColor: colour("--muted"), inactiveColor: colour("--line")
    };
  }

  return {
    along: along, axis: axis, base: base, bytes: bytes, charts: {}, classColour: classColour, colour: colour,
    legend: legend, lines: lines, number: number, plainText: plainText, short: short, still: still
  };
})();
