"use strict";
/* The charts of communication, and of the steps of plans. */
(function (kit) {
  var charts = kit.charts;

  /* The collectives of one step of one rank, a row each. */
  charts.timeline = function (data, chosen, narrow, width) {
    var option = kit.base(narrow), rank = data.ranks[chosen.choice] || data.ranks[0], spans = rank.spans;
    var kinds = [
      { name: "queued", from: "ready", to: "start", look: { color: kit.colour("--line") }, top: 0.1, height: 0.45 },
      { name: "waiting for a later rank", from: "start", to: "moves", look: kit.look("straggler"), top: 0.1, height: 0.45 },
      { name: "moving data", from: "moves", to: "end", look: kit.look("series-4"), top: 0.1, height: 0.45 },
      { name: "wait or transfer, not told apart", from: "start", to: "end", look: kit.look("series-6"), top: 0.1, height: 0.45, only: "unknown" },
      { name: "exposed: computing waits", from: "need", to: "end", look: kit.look("comm"), top: 0.62, height: 0.24 }
    ];
    spans = spans.map(function (span) {
      return Object.assign({ need: span.end === null ? null : span.end - span.exposed }, span);
    });
    option.series = kinds.map(function (kind) {
      var rows = [];
      spans.forEach(function (span, row) {
        var from = span[kind.from], to = span[kind.to], unknown = span.moves === null;
        if (kind.only === "unknown" && !unknown) return;
        if (from !== null && to !== null && to > from) rows.push([row, from, to]);
      });
      return { name: kind.name, type: "custom", data: rows, itemStyle: kind.look, encode: { x: [1, 2], y: 0 }, renderItem: bar(kind) };
    }).filter(function (series) { return series.data.length; });
    var last = spans.reduce(function (most, span) { return Math.max(most, span.end || 0); }, rank.step);
    kit.legend(option, option.series.map(function (series) { return series.name; }), width);
    option.xAxis = kit.along(data.unit + " since the start of the step", { type: "value", min: 0, max: last });
    var names = spans.map(function (span, row) { return row + 1 + " " + span.label + " " + kit.bytes(span.bytes); });
    option.yAxis = {
      type: "category", inverse: true, axisTick: { show: false }, axisLine: { lineStyle: { color: kit.colour("--line") } }, data: names,
      axisLabel: Object.assign(kit.beside(names, width), spans.length > 30 ? { interval: "auto" } : {})
    };
    option.tooltip.formatter = function (point) {
      var span = spans[point.value[0]];
      function time(v) { return kit.number(v) + (v === null ? "" : " " + data.unit); }
      return kit.lines([
        span.label + " of " + kit.bytes(span.bytes) + ", " + span.scope, "ready at " + time(span.ready), "queued: " + time(span.start - span.ready),
        "wait: " + time(span.moves === null ? null : span.moves - span.start), "transfer: " + time(span.moves === null ? null : span.end - span.moves),
        "exposed: " + time(span.exposed), "hidden: " + time(span.end === null ? null : Math.max(0, span.end - span.start - span.exposed))
      ]);
    };
    return option;
  };

  function bar(kind) {
    return function (params, api) {
      var begin = api.coord([api.value(1), api.value(0)]), end = api.coord([api.value(2), api.value(0)]);
      var height = api.size([0, 1])[1];
      return {
        type: "rect",
        shape: { x: begin[0], y: begin[1] - height / 2 + kind.top * height, width: Math.max(end[0] - begin[0], 1), height: kind.height * height },
        style: { fill: kind.look.color, decal: kind.look.decal }
      };
    };
  }

  /* Points with the bars of their spread, both axes logarithmic. */
  charts.bandwidth = function (data, chosen, narrow, width) {
    var option = kit.base(narrow), series = [];
    var symbols = ["circle", "triangle", "rect", "diamond", "pin", "arrow"];
    data.series.forEach(function (each, index) {
      var shade = kit.seriesColour(index + 3);
      series.push({ name: each.label, type: "line", data: each.points, encode: { x: 0, y: 1 }, symbol: symbols[index % symbols.length], symbolSize: 11, showAllSymbol: true, lineStyle: { color: shade, width: 1.2, type: "dashed" }, itemStyle: { color: shade } });
      series.push({
        name: each.label, type: "custom", data: each.points, silent: true, itemStyle: { color: shade }, encode: { x: 0, y: [2, 3] },
        renderItem: function (params, api) {
          var low = api.coord([api.value(0), api.value(2)]), high = api.coord([api.value(0), api.value(3)]);
          return { type: "line", shape: { x1: low[0], y1: low[1], x2: high[0], y2: high[1] }, style: { stroke: shade, lineWidth: 2 } };
        }
      });
    });
    option.series = series;
    kit.legend(option, data.series.map(function (each) { return each.label; }), width);
    option.xAxis = kit.along("size", { type: "log", logBase: 2, splitLine: { show: false }, axisLabel: { color: kit.colour("--muted"), hideOverlap: true, formatter: kit.bytes } });
    option.yAxis = kit.axis("GB/s", { type: "log" });
    option.tooltip.formatter = function (point) {
      return kit.lines([point.seriesName, kit.bytes(point.value[0]), "median " + kit.number(point.value[1]) + " GB/s", "10th to 90th percentile: " + kit.number(point.value[2]) + " to " + kit.number(point.value[3]), kit.number(point.value[4]) + " collectives"]);
    };
    return option;
  };

  /* A stacked bar for each plan. */
  charts.stacks = function (data, chosen, narrow, width) {
    var option = kit.base(narrow);
    option.series = data.series.map(function (each, index) {
      return { name: each.label, type: "bar", stack: "step", barMaxWidth: 22, data: each.values, itemStyle: kit.look(each.name, index) };
    });
    kit.legend(option, data.series.map(function (each) { return each.label; }), width);
    option.xAxis = kit.along(data.unit, { type: "value", min: 0 });
    option.yAxis = { type: "category", inverse: true, data: data.labels, axisTick: { show: false }, axisLine: { lineStyle: { color: kit.colour("--line") } }, axisLabel: kit.beside(data.labels, width) };
    option.tooltip.trigger = "axis";
    option.tooltip.formatter = function (points) {
      return kit.lines([points[0].name].concat(points.filter(function (point) { return point.value; }).map(function (point) { return point.seriesName + ": " + kit.number(point.value) + " " + data.unit; })));
    };
    return option;
  };
})(window.ddlprof);
