"use strict";
/* What all charts of a page have in common: colours, figures as text, and the parts of ECharts' options. */
window.ddlprof = (function () {
  var SERIES = 10;

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  /* The colour of what is no class; no class has it. */
  function seriesColour(index) {
    return colour("--series-" + (index % SERIES + 1));
  }

  /* The colour of a class, the same in every chart; names that are no class, or `series-N`, have others. */
  function classColour(name, index) {
    return colour("--class-" + name.replace(/_/g, "-")) || colour("--" + name) || seriesColour(index || 0);
  }

  /* A figure with about four digits. */
  function number(value) {
    if (value === null || value === undefined || value !== value) return "not measured";
    var size = Math.abs(value);
    if (size > 0 && size < 0.1) return value.toLocaleString("en", { maximumSignificantDigits: 3 });
    var digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 3;
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

  /* A promise of the numbers that `packed` (chart.py) wrote as text. */
  function unpacked(box) {
    var bytes = Uint8Array.from(atob(box.text), function (letter) { return letter.charCodeAt(0); });
    var planes = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(planes).arrayBuffer().then(function (buffer) {
      var all = new Uint8Array(buffer), values = new Array(box.count);
      for (var at = 0; at < box.count; at += 1) {
        var level = all[at] + 256 * all[at + box.count];
        values[at] = level === 0 ? null : level === 1 ? 0 : Number((box.low * Math.exp(box.ratio * (level - 2))).toPrecision(4));
      }
      return values;
    });
  }

  var pen = null;

  /* How wide a text is drawn, in pixels. */
  function textWidth(text, size) {
    pen = pen || document.createElement("canvas").getContext("2d");
    pen.font = (size || 12) + "px " + colour("--font");
    return pen.measureText(text).width;
  }

  function widest(texts, size) {
    return texts.reduce(function (most, text) { return Math.max(most, textWidth(text, size)); }, 0);
  }

  /* Names beside a drawing: whole, as long as they leave most of the width to it. */
  function beside(names, width) {
    return { color: colour("--text"), width: Math.min(Math.ceil(widest(names)) + 1, 0.42 * width), overflow: "truncate", interval: 0 };
  }

  function still() {
    return window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  }

  /* The place for a drawing together with all that is written on its axes, which ECharts measures as it is drawn. */
  function inside(place) {
    return Object.assign(place, { outerBoundsMode: "same", outerBoundsContain: "all", outerBoundsClampWidth: "10%" });
  }

  function base(narrow) {
    return {
      animation: false,
      backgroundColor: "transparent",
      textStyle: { color: colour("--text"), fontFamily: colour("--font"), fontSize: 12 },
      aria: { enabled: true, label: { enabled: false }, decal: { show: false } },
      grid: inside({ left: 8, right: narrow ? 18 : 26, top: 40, bottom: 8 }),
      tooltip: tooltip()
    };
  }

  /* Patterns tell classes apart without their colours; a class has the same one in every chart. */
  var PATTERNED = {
    compute: 0, compute_forward: 4, compute_backward: 0, compute_optimizer: 6, data: 1, data_fetch: 5, data_prep: 1,
    h2d: 5, comm: 6, interconnect: 2, network: 3, straggler: 4, bubble: 5, other: 6
  };

  function decal(name, index) {
    var ink = colour("--decal"), number = name in PATTERNED ? PATTERNED[name] : Number(name.split("series-")[1] || (index || 0) + 1);
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
    var isFigure = more && (more.type === "value" || more.type === "log");
    return Object.assign({
      name: name,
      nameTextStyle: { color: colour("--muted") },
      axisLine: { lineStyle: { color: colour("--line") } },
      axisLabel: Object.assign({ color: colour("--muted"), hideOverlap: true }, isFigure ? { formatter: number } : {}),
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
  function legend(option, names, width) {
    var lines = 1, used = 0;
    names.forEach(function (name) {
      var wide = 31 + textWidth(name.label || name);
      if (used && used + wide - 8 > width) { lines += 1; used = 0; }
      used += wide;
    });
    var scrolls = lines > 5;
    option.legend = {
      type: scrolls ? "scroll" : "plain", top: 2, left: 0, right: 0, data: names.map(entry), itemWidth: 18, itemHeight: 12, itemGap: 8, padding: [4, 0],
      textStyle: { color: colour("--text") }, pageTextStyle: { color: colour("--muted") },
      pageIconColor: colour("--muted"), inactiveColor: colour("--line")
    };
    var top = (scrolls ? 1 : lines) * LINE + 8;
    if (Array.isArray(option.grid)) option.grid[0].top = top; else option.grid.top = top;
    return option;
  }

  return {
    along: along, axis: axis, base: base, beside: beside, bytes: bytes, charts: {}, classColour: classColour, colour: colour,
    inside: inside, legend: legend, lines: lines, look: look, number: number, plainText: plainText, seriesColour: seriesColour, short: short, still: still, textWidth: textWidth, unpack: {}, unpacked: unpacked, views: {}, widest: widest
  };
})();
