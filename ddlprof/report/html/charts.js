"use strict";
/* The charts of time: each function makes ECharts' options of a chart's data and what the reader chose. */
(function (kit) {
  var charts = kit.charts;

  function tip(option, formatter) {
    option.tooltip.formatter = formatter;
    return option;
  }

  function value(point) {
    return Array.isArray(point.value) ? point.value[1] : point.value;
  }

  /* One bar of parts that add up. Parts of a part are a second, thinner bar below it. */
  charts.mean = function (data, chosen, narrow, width) {
    var option = kit.base(narrow), fine = [], names = [];
    data.parts.forEach(function (part) {
      var rest = part.value;
      part.parts.forEach(function (each) {
        if (each.value > 0) fine.push({ name: each.name, label: each.label, value: each.value });
        rest -= each.value;
      });
      if (rest > 1e-3 * data.step || !part.parts.length) {
        fine.push({ name: part.name, label: part.parts.length ? part.label + ": the rest" : part.label, value: rest, hidden: !part.parts.length });
      }
    });
    var hasParts = fine.some(function (each) { return !each.hidden; });
    function bar(each, index, row, height) {
      var cells = hasParts ? [null, null] : [null];
      cells[row] = each.value;
      if (each.label && row === 0) names.push(each.label);
      return {
        type: "bar", stack: "step", name: each.label, data: cells, barWidth: height,
        itemStyle: each.hidden ? { color: "transparent" } : Object.assign(kit.look(each.name, index), { borderColor: kit.colour("--panel"), borderWidth: 1 }),
        label: { show: !each.hidden && each.value > (row ? 0.1 : 0.09) * data.step * (narrow ? 2 : 1), fontSize: row ? 10 : 12, color: "#fff", textBorderColor: "rgba(0,0,0,.55)", textBorderWidth: 2, formatter: function () { return row ? each.label.split(": ").pop() : kit.number(each.value); } },
        silent: Boolean(each.hidden)
      };
    }
    option.series = data.parts.map(function (part, index) { return bar(part, index, 0, 34); });
    if (hasParts) option.series = option.series.concat(fine.map(function (each, index) { return bar(each, index, 1, 16); }));
    option.series.forEach(function (series) { series.barGap = "-100%"; });
    kit.legend(option, names, width);
    option.xAxis = kit.along(data.unit, { type: "value", max: data.step, splitLine: { show: false } });
    option.yAxis = { type: "category", inverse: true, data: hasParts ? ["classes", "parts"] : [""], axisLine: { show: false }, axisTick: { show: false }, axisLabel: { color: kit.colour("--muted"), show: hasParts && !narrow } };
    return tip(option, function (point) {
      return kit.lines([point.seriesName, kit.number(point.value) + " " + data.unit + ", " + kit.number(100 * point.value / data.step) + " %"]);
    });
  };

  function range(data, index) {
    return data.first[index] === data.last[index] ? "step " + data.first[index] : "steps " + data.first[index] + " to " + data.last[index];
  }

  /* Which bins the fields ask for. */
  function zoomOf(data, chosen) {
    var count = data.first.length, begin = 0, end = count - 1;
    if (chosen.first !== null && chosen.first === chosen.first) {
      while (begin < count - 1 && data.last[begin] < chosen.first) begin += 1;
    }
    if (chosen.last !== null && chosen.last === chosen.last) {
      while (end > begin && data.first[end] > chosen.last) end -= 1;
    }
    return { startValue: begin, endValue: end };
  }

  var BLOCK = 1000;

  /* Some of many single steps, so that a run of any length is drawn at once. */
  function partOf(single, from, to) {
    function cut(values) { return values.slice(from, to); }
    return {
      first: cut(single.first), last: cut(single.last), longest: cut(single.longest), shortest: cut(single.shortest),
      series: single.series.map(function (each) { return { name: each.name, label: each.label, values: cut(each.values) }; }),
      flags: single.flags.map(function (flag) {
        return { label: flag.label, bins: flag.bins.filter(function (at) { return at >= from && at < to; }).map(function (at) { return at - from; }) };
      })
    };
  }

  /* The single steps that a chart has packed, as a promise. */
  kit.unpack.steps = function (data) {
    var box = data.packed, numbers = [];
    box.steps.forEach(function (row) { for (var n = row[0]; n <= row[1]; n += 1) numbers.push(n); });
    var series = box.series.map(function (each) { return kit.unpacked(each.values); });
    return Promise.all(series.concat(box.longest ? [kit.unpacked(box.longest), kit.unpacked(box.shortest)] : [])).then(function (all) {
      var sums = box.longest ? null : numbers.map(function (_, at) {
        return series.reduce(function (sum, _, number) { return sum + (all[number][at] || 0); }, 0);
      });
      data.single = {
        first: numbers, last: numbers, flags: box.flags, longest: sums || all[series.length], shortest: sums || all[series.length + 1],
        series: box.series.map(function (each, number) { return { name: each.name, label: each.label, values: all[number] }; })
      };
    });
  };

  /* What is drawn of the steps: bins, or single steps where so few are in sight that each can be seen. */
  function stepsView(data, chosen) {
    var part = data, zoom = zoomOf(data, chosen), from = 0;
    if (data.single) {
      var near = zoomOf(data.single, chosen);
      if (near.endValue - near.startValue < data.few) {
        from = Math.max(0, (Math.floor(near.startValue / BLOCK) - 1) * BLOCK);
        part = partOf(data.single, from, from + 3 * BLOCK);
        zoom = { startValue: near.startValue - from, endValue: near.endValue - from };
      }
    }
    var count = zoom.endValue - zoom.startValue + 1, bars = count <= 150;
    return { part: part, zoom: zoom, from: from, count: count, bars: bars, name: (part === data ? "bins" : "steps") + (bars ? ", bars" : "") };
  }
  kit.views.steps = stepsView;

  function percentile(values, share) {
    var known = values.filter(function (v) { return v !== null; }).sort(function (a, b) { return a - b; });
    return known.length ? known[Math.min(known.length - 1, Math.floor(share * known.length))] : 0;
  }

  /* Stacked classes over the steps; what is far above the rest is cut off and marked. */
  charts.steps = function (whole, chosen, narrow, width) {
    var option = kit.base(narrow), view = stepsView(whole, chosen), data = view.part, few = view.bars, unit = whole.unit;
    var total = data.first.map(function (_, i) {
      return data.series.reduce(function (sum, each) { return sum + (each.values[i] || 0); }, 0);
    });
    var top = chosen.choice === 0 ? whole.top : null;
    var differ = data.longest.some(function (v, i) { return v !== null && v > 1.001 * total[i]; });
    option.series = data.series.map(function (each, index) {
      var shade = kit.classColour(each.name, index);
      var common = { name: each.label, stack: "step", data: each.values, itemStyle: kit.look(each.name, index) };
      return Object.assign(common, few
        ? { type: "bar", barCategoryGap: "8%", large: false }
        : { type: "line", step: "middle", symbol: "none", lineStyle: { width: 0 }, areaStyle: { color: shade, opacity: 1 }, emphasis: { disabled: true } });
    });
    if (differ) {
      option.series.push({ name: "longest step", type: "line", symbol: "none", data: data.longest, lineStyle: { color: kit.colour("--text"), width: 1, type: "dotted" }, itemStyle: { color: kit.colour("--text") } });
      option.series.push({ name: "shortest step", type: "line", symbol: "none", data: data.shortest, lineStyle: { color: kit.colour("--muted"), width: 1, type: "dotted" }, itemStyle: { color: kit.colour("--muted") } });
    }
    var names = data.series.concat(differ ? ["longest step", "shortest step"] : []);
    if (top !== null) {
      option.series.push({
        name: "higher than drawn", z: 5, type: "scatter", symbol: "triangle", symbolSize: 12, symbolOffset: [0, 5], itemStyle: { color: kit.colour("--critical"), borderColor: kit.colour("--panel"), borderWidth: 1.5 },
        data: data.longest.map(function (v, i) { return Math.max(v || 0, total[i]) > top ? top : null; })
      });
      names.push("higher than drawn");
    }
    data.flags.forEach(function (flag, row) {
      option.series.push({
        name: flag.label, type: "scatter", xAxisIndex: 1, yAxisIndex: 1, symbol: "rect", symbolSize: [Math.max(3, Math.min(8, 600 / view.count)), 8],
        itemStyle: { color: kit.colour("--accent") }, data: flag.bins.map(function (bin) { return [bin, row]; })
      });
    });
    var strip = data.flags.length ? 16 * data.flags.length + 8 : 0, small = narrow ? 9 : 11;
    var highest = Math.max(top || 0, data.longest.reduce(function (most, v) { return Math.max(most, v || 0); }, 0));
    var left = 18 + Math.max(kit.widest(data.flags.map(function (flag) { return flag.label; }), small), kit.textWidth(kit.number(10 * highest)));
    option.grid = [{ left: left, right: 24, top: 42, bottom: 74 + strip }, { left: left, right: 24, height: strip, bottom: 66 }];
    kit.legend(option, names, width);
    option.grid[0].top += 16;
    var labels = data.first.map(String);
    option.xAxis = [
      kit.along("", { type: "category", data: labels, boundaryGap: few, splitLine: { show: false }, axisTick: { show: false }, axisLabel: { show: !strip, color: kit.colour("--muted") } }),
      kit.along("step", { gridIndex: 1, type: "category", data: labels, boundaryGap: few, show: strip > 0, nameGap: 22, axisLabel: { color: kit.colour("--muted"), hideOverlap: true }, splitLine: { show: false } })
    ];
    option.yAxis = [
      kit.axis(unit, { type: "value", min: 0, max: top, nameGap: 11, nameTextStyle: { color: kit.colour("--muted"), align: "right" } }),
      { gridIndex: 1, type: "category", inverse: true, data: data.flags.map(function (flag) { return flag.label; }), axisLine: { show: false }, axisTick: { show: false }, axisLabel: { color: kit.colour("--muted"), fontSize: small, interval: 0 } }
    ];
    var zoom = Object.assign({ filterMode: data === whole ? "none" : "filter" }, view.zoom);
    option.dataZoom = [
      Object.assign({ type: "inside", xAxisIndex: [0, 1], zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false }, zoom),
      Object.assign({ type: "slider", xAxisIndex: [0, 1], height: 20, bottom: 10, borderColor: kit.colour("--line"), textStyle: { color: kit.colour("--muted") }, showDataShadow: false, labelFormatter: function (i) { return data.first[i] === undefined ? "" : String(data.first[i]); } }, zoom)
    ];
    option.tooltip.trigger = "axis";
    option.tooltip.axisPointer = { type: "line" };
    return tip(option, function (points) {
      var i = points[0].dataIndex, flags = data.flags.filter(function (flag) { return flag.bins.indexOf(i) >= 0; });
      var text = [range(data, i), "mean: " + kit.number(total[i]) + " " + unit];
      data.series.forEach(function (each) { if (each.values[i] !== null) text.push("  " + each.label + ": " + kit.number(each.values[i])); });
      text.push("longest step: " + kit.number(data.longest[i]) + ", shortest: " + kit.number(data.shortest[i]));
      flags.forEach(function (flag) { text.push("with: " + flag.label); });
      return kit.lines(text);
    });
  };

  /* A box for each rank. */
  charts.boxes = function (data, chosen, narrow, width) {
    var option = kit.base(narrow), measure = data.measures[chosen.choice] || data.measures[0];
    option.xAxis = kit.along("rank", { type: "category", data: data.ranks.map(String), splitLine: { show: false } });
    option.yAxis = kit.axis(data.unit, { type: "value", scale: true });
    option.series = [
      {
        name: measure.label, type: "boxplot", boxWidth: [6, 44],
        data: measure.spread.map(function (row) { return row.slice(0, 5); }),
        itemStyle: { color: kit.colour("--scale-low"), borderColor: kit.seriesColour(0), borderWidth: 1.5 }
      },
      {
        name: "mean", type: "scatter", symbol: "diamond", symbolSize: 9,
        data: measure.spread.map(function (row) { return row[5]; }), itemStyle: { color: kit.seriesColour(4) }
      }
    ];
    kit.legend(option, ["mean"], width);
    return tip(option, function (point) {
      var row = measure.spread[point.dataIndex].map(kit.number);
      return kit.lines(["rank " + data.ranks[point.dataIndex] + ", " + measure.label, "5 %: " + row[0], "25 %: " + row[1], "median: " + row[2], "75 %: " + row[3], "95 %: " + row[4], "mean: " + row[5] + " " + data.unit]);
    });
  };

  /* Rank by step. What is relative has two colours, with nothing in the middle. */
  charts.heat = function (data, chosen, narrow, width) {
    var option = kit.base(narrow), measure = data.measures[chosen.choice] || data.measures[0], cells = [], all = [];
    measure.rows.forEach(function (row, rank) {
      row.forEach(function (v, bin) {
        if (v !== null) { cells.push([bin, rank, v]); all.push(measure.relative ? Math.abs(v) : v); }
      });
    });
    var most = percentile(all, 0.99) || 1, least = measure.relative ? -most : percentile(all, 0.01);
    option.xAxis = kit.along("step", { type: "category", data: data.first.map(String), splitLine: { show: false }, axisLabel: { color: kit.colour("--muted"), hideOverlap: true } });
    option.yAxis = kit.axis("rank", { type: "category", inverse: true, data: data.ranks.map(String), splitLine: { show: false }, nameLocation: "start" });
    option.grid = kit.inside({ left: 8, right: 12, top: 8, bottom: 48 });
    var more = narrow ? "" : " and more", less = narrow ? "" : " and less";
    option.visualMap = {
      min: least, max: Math.max(most, least + 1e-9), calculable: false, orient: "horizontal", left: "center", bottom: 4, itemHeight: narrow ? 90 : 160, itemWidth: 12,
      text: [kit.number(most) + " " + data.unit + more, measure.relative ? kit.number(least) + " " + data.unit + less : kit.number(least) + " " + data.unit],
      textStyle: { color: kit.colour("--muted") },
      inRange: { color: measure.relative ? [kit.colour("--low"), kit.colour("--middle"), kit.colour("--high")] : [kit.colour("--scale-low"), kit.colour("--scale-high")] }
    };
    option.series = [{ type: "heatmap", data: cells, itemStyle: { borderWidth: 0 }, progressive: 0, emphasis: { itemStyle: { borderColor: kit.colour("--text"), borderWidth: 1 } } }];
    return tip(option, function (point) {
      return kit.lines(["rank " + data.ranks[point.value[1]] + ", " + range(data, point.value[0]), measure.label, kit.number(point.value[2]) + " " + data.unit]);
    });
  };

  /* Lines over the minutes of the run, or over what `along` names. `free`: the values may lie far from 0, or below. */
  charts.lines = function (data, chosen, narrow, width) {
    var option = kit.base(narrow), along = data.along || "minutes", unit = data.unit ? " " + data.unit : "";
    option.xAxis = kit.along(along, { type: "value", min: 0, max: "dataMax", splitLine: { show: false } });
    option.yAxis = kit.axis(data.unit, { type: "value", scale: Boolean(data.free), min: data.free ? null : 0, max: data.unit === "%" ? function (range) { return range.max <= 100 ? 100 : null; } : null });
    var styles = ["solid", "dashed", "dotted"];
    option.series = data.lines.map(function (line, index) {
      var shade = kit.seriesColour(index);
      return { name: line.label, type: "line", data: line.points, showSymbol: line.points.length < 40, symbolSize: 5, itemStyle: { color: shade }, lineStyle: { color: shade, width: 1.8, type: styles[Math.floor(index / 3) % 3] } };
    });
    kit.legend(option, data.lines.map(function (line) { return line.label; }), width);
    option.tooltip.trigger = "axis";
    return tip(option, function (points) {
      return kit.lines([kit.number(points[0].value[0]) + " " + along].concat(points.map(function (point) { return point.seriesName + ": " + kit.number(value(point)) + unit; })));
    });
  };

  function rows(option, labels, width) {
    option.grid.top = 8;
    option.yAxis = {
      type: "category", inverse: true, data: labels, axisLine: { lineStyle: { color: kit.colour("--line") } }, axisTick: { show: false },
      axisLabel: kit.beside(labels, width)
    };
    return option;
  }

  function barText(value, unit) { return kit.number(value) + " " + unit; }

  function barLabel(unit) {
    return { show: true, position: "right", color: kit.colour("--text"), formatter: function (point) { return barText(point.value, unit); } };
  }

  /* Named bars, the first on top. */
  charts.bars = function (data, chosen, narrow, width) {
    var option = rows(kit.base(narrow), data.bars.map(function (bar) { return bar.label; }), width);
    option.grid.right = 12 + kit.widest(data.bars.map(function (bar) { return barText(bar.value, data.unit); }));
    option.xAxis = kit.along(data.unit, { type: "value", min: 0 });
    option.series = [{ type: "bar", barMaxWidth: 20, data: data.bars.map(function (bar) { return { value: bar.value, itemStyle: kit.look(bar.name || "series-1") }; }), label: barLabel(data.unit) }];
    return tip(option, function (point) { return kit.lines([point.name, kit.number(point.value) + " " + data.unit]); });
  };
  charts.money = charts.bars;

  /* What is left of the step, and what of it is gone. */
  charts.ceilings = function (data, chosen, narrow, width) {
    var option = kit.base(narrow);
    rows(option, data.bars.map(function (bar) { return bar.label; }), width);
    kit.legend(option, ["step at least", "gain at most"], width);
    option.grid.right = 24;
    option.xAxis = kit.along(data.unit, { type: "value", min: 0, max: data.step });
    option.series = [
      { name: "step at least", type: "bar", stack: "step", barMaxWidth: 22, data: data.bars.map(function (bar) { return bar.least; }), itemStyle: kit.look("series-1"), label: { show: true, position: "inside", color: "#fff", textBorderColor: "rgba(0,0,0,.55)", textBorderWidth: 2, formatter: function (point) { return kit.number(point.value) + " " + data.unit; } } },
      { name: "gain at most", type: "bar", stack: "step", data: data.bars.map(function (bar) { return bar.gain; }), itemStyle: kit.look("series-4") }
    ];
    option.tooltip.trigger = "axis";
    return tip(option, function (points) {
      return kit.lines([points[0].name].concat(points.map(function (point) { return point.seriesName + ": " + kit.number(point.value) + " " + data.unit; })));
    });
  };
})(window.ddlprof);
