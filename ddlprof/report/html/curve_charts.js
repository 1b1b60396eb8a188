"use strict";
/* Curves of several subjects over one axis: what `ddlprof cluster simulate` draws. */
(function (kit) {
  var STYLES = ["solid", "dashed", "dotted"];

  function shown(value) { return kit.number(value); }

  /* Lines of one of several views; an axis is logarithmic where a view says so. */
  kit.charts.curves = function (data, chosen, narrow, width) {
    var option = kit.base(narrow), view = data.views[chosen.choice] || data.views[0];
    var muted = { color: kit.colour("--muted"), hideOverlap: true, formatter: shown };
    option.xAxis = kit.along(view.along, { type: view.log ? "log" : "value", min: view.log ? null : view.least, scale: view.least === undefined, splitLine: { show: false }, axisLabel: muted });
    option.yAxis = kit.axis(view.unit, { type: "value", min: 0, max: view.top, axisLabel: muted });
    option.series = view.lines.map(function (line, index) {
      var shade = kit.seriesColour(index);
      return {
        name: line.label, type: "line", data: line.points, step: view.step || false, showSymbol: line.points.length < 20, symbolSize: 6,
        itemStyle: { color: shade }, lineStyle: { color: shade, width: 1.8, type: STYLES[Math.floor(index / 3) % 3] }
      };
    });
    kit.legend(option, view.lines.map(function (line) { return line.label; }), width);
    option.tooltip.trigger = view.near ? "item" : "axis";
    option.tooltip.formatter = function (points) {
      var list = Array.isArray(points) ? points : [points];
      return kit.lines([shown(list[0].value[0]) + " " + view.along].concat(list.map(function (point) {
        return point.seriesName + ": " + shown(point.value[1]) + " " + view.unit;
      })));
    };
    return option;
  };
})(window.ddlprof);
