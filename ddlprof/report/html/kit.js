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
      aria: { enabled: true, label: { enabled: false }, decal: { show: false } },
      grid: { left: 8, right: narrow ? 18 : 26, top: 40, bottom: 8, containLabel: true },
      tooltip: tooltip()
    };
  }

  /* Patterns tell classes apart without their colours; a class has the same one in every chart. */
  var PATTERNED = {
    compute: 0, compute_forward: 4, compute_backward: 0, compute_optimizer: 6, data: 1, data_fetch: 5, data_prep: 1,
    h2d: 5, comm: 6, interconnect: 2, network: 3, straggler: 4, other: 6
  };

  function decal(name, index) {
    var ink = colour("--decal"), number = name in PATTERNED ? PATTERNED[name] : (index || 0) + 1;
    var patterns = [
      { symbol: "none" },
      { color: ink, dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: 0.785, symbolSize: 1 },
      { color: ink, symbol: "circle", symbolSize: 0.55, dashArrayX: [[8, 8], [0, 8, 8, 0]], dashArrayY: [6, 0] },
      { color: ink, dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: -0.785, symbolSize: 1 },
      { color: ink, dashArrayX: [1, 0], dashArrayY: [1, 5], rotation: 0, symbolSize: 1 },
      { color: ink, dashArrayX: [1, 0], dashArrayY: [1, 5], rotation: 1.5708, symbolSize: 1 },
      { color: ink, symbol: "rect", symbolSize: 0.6, dashArrayX: [[6, 6], [0, 6, 6, 0]], dashArrayY: [5, 0] }
    ];
    return patterns[number % patterns.length];
  }

  /* The colour and the pattern of a class. */
  function look(name, index) {
    return { color: classColour(name, index), decal: decal(name, index) };
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

  var LINE = 20;

  /* A name in a legend; that of a class shows its colour, others their mark. */
  function entry(name) {
    return name.label ? { name: name.label, icon: "roundRect" } : { name: name };
  }

  /* The names above a drawing, and room for them: lines of names are counted as a browser would break them. */
  function legend(option, names, width, unit) {
    var lines = 1, used = 0;
    names.forEach(function (name) {
      var wide = 36 + 6.8 * (name.label || name).length;
      if (used && used + wide > width) { lines += 1; used = 0; }
      used += wide;
    });
    var scrolls = lines > 5;
    option.legend = {
      type: scrolls ? "scroll" : "plain", top: 2, left: 0, right: 0, data: names.map(entry), itemWidth: 18, itemHeight: 12, itemGap: 8, padding: [4, 0],
      textStyle: { color: colour("--text") }, pageTextStyle: { color: colour("--muted") },
      pageIconColor: colour("--muted"), inactiveColor: colour("--line")
    };
    var top = (scrolls ? 1 : lines) * LINE + (unit ? 28 : 12);
    if (Array.isArray(option.grid)) option.grid[0].top = top; else option.grid.top = top;
    return option;
  }

  return {
    along: along, axis: axis, base: base, bytes: bytes, charts: {}, classColour: classColour, colour: colour,
    legend: legend, lines: lines, look: look, number: number, plainText: plainText, short: short, still: still
  };
})();
