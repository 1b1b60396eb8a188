"use strict";
/* The chart of plans: time against cost. */
(function (kit) {
  var SMALL = 11;

  function steps(low, high, most) {
    var wide = (high - low) / most, power = Math.pow(10, Math.floor(Math.log10(wide)));
    var step = [1, 2, 5, 10].map(function (each) { return each * power; }).filter(function (each) { return each >= wide; })[0];
    var ticks = [];
    for (var n = Math.ceil(low / step); n * step <= high; n += 1) ticks.push(Number((n * step).toPrecision(12)));
    return ticks;
  }

  function decades(low, high, most) {
    var best = [];
    [[1, 2, 5], [1, 3], [1]].some(function (digits) {
      best = [];
      for (var power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
        digits.forEach(function (digit) {
          var tick = Number((digit * Math.pow(10, power)).toPrecision(12));
          if (tick >= low && tick <= high) best.push(tick);
        });
      }
      return best.length <= most;
    });
    var every = Math.ceil(best.length / most);
    return best.filter(function (_, at) { return at % every === 0; });
  }

  /* From the least to the largest of these with a little room, `before` as a share of the axis: logarithmic where they
     span more than a decade. */
  function fitted(values, most, before) {
    var low = Math.min.apply(null, values), high = Math.max.apply(null, values), after = 0.05;
    var log = high > 10 * low, share = 1 / (1 - before - after);
    if (log) {
      var whole = Math.pow(high / low, share);
      low /= Math.pow(whole, before);
      high *= Math.pow(whole, after);
      return { type: "log", min: low, max: high, ticks: decades(low, high, most) };
    }
    var span = (high - low || 0.2 * high) * share;
    low = Math.max(0, low - before * span);
    high += after * span;
    return { type: "value", min: low, max: high, ticks: steps(low, high, most) };
  }

  function share(fit, value) {
    return fit.type === "log" ? Math.log(value / fit.min) / Math.log(fit.max / fit.min) : (value - fit.min) / (fit.max - fit.min);
  }

  /* Whether a limit is so near to the points that it can be in sight without making them small. */
  function isNear(limit, values) {
    var low = Math.min.apply(null, values), high = Math.max.apply(null, values);
    return limit >= low / 1.5 && limit <= (high > 10 * low ? 3 * high : high + 0.6 * (high - low));
  }

  function axisOf(fit) {
    return {
      type: fit.type, min: fit.min, max: fit.max, axisTick: { customValues: fit.ticks, lineStyle: { color: kit.colour("--line") } },
      axisLabel: { color: kit.colour("--muted"), customValues: fit.ticks, hideOverlap: true, formatter: kit.number }
    };
  }

  function interval(shade) {
    return function (params, api) {
      var left = api.coord([api.value(2), api.value(1)]), right = api.coord([api.value(3), api.value(1)]);
      var low = api.coord([api.value(0), api.value(4)]), high = api.coord([api.value(0), api.value(5)]);
      var style = { stroke: shade, lineWidth: 1, opacity: 0.7 };
      return { type: "group", children: [
        { type: "line", shape: { x1: left[0], y1: left[1], x2: right[0], y2: right[1] }, style: style },
        { type: "line", shape: { x1: low[0], y1: low[1], x2: high[0], y2: high[1] }, style: style }
      ] };
    };
  }

  /* Where the names of some points are: below and left of a plan that nothing beats there is no other. Those at both ends
     come first, then as many between them as do not touch. The place is that of the drawing, nearly. */
  function placed(group, along, up, place) {
    var boxes = [], last = group.points.length - 1, order = [0, last];
    for (var at = 1; at < last; at += 1) order.push(at);
    order.forEach(function (at) {
      if (boxes.some(function (box) { return box.at === at; })) return;
      var wide = kit.textWidth(group.names[at], SMALL) + 8, point = group.points[at];
      var x = share(along, point[0]) * place.width, y = (1 - share(up, point[1])) * place.height, isLeft = x > wide;
      var left = isLeft ? x - wide : x + 6, top = isLeft ? y + 2 : y - 8;
      var box = { at: at, isLeft: isLeft, left: left, right: left + wide, top: top, bottom: top + 18 };
      var free = boxes.every(function (other) {
        return box.right < other.left || other.right < box.left || box.bottom < other.top || other.bottom < box.top;
      });
      if (free && box.right < place.width) boxes.push(box);
    });
    return boxes;
  }

  function named(group, boxes) {
    return group.points.map(function (point, at) {
      var box = boxes.filter(function (each) { return each.at === at; })[0];
      if (!box) return { value: point };
      return { value: point, label: {
        show: true, position: "right", distance: 0, fontSize: SMALL, color: kit.colour("--text"), textBorderColor: kit.colour("--panel"), textBorderWidth: 3,
        align: box.isLeft ? "right" : "left", verticalAlign: box.isLeft ? "top" : "middle", offset: box.isLeft ? [-group.size, 5] : [4, 0],
        formatter: kit.plainText(group.names[at])
      } };
    });
  }

  /* Time against cost, with what nothing beats in both, and on demand with intervals. */
  kit.charts.pareto = function (data, chosen, narrow, width) {
    var option = kit.base(narrow), series = [], times = [], costs = [], wide = chosen.choice === 1, most = narrow ? 5 : 9;
    data.groups.forEach(function (group) {
      group.points.forEach(function (point) {
        times.push(point[0]);
        costs.push(point[1]);
        if (wide && group.names) { times.push(point[2], point[3]); costs.push(point[4], point[5]); }
      });
    });
    var names = data.groups.reduce(function (all, group) { return all.concat(group.names || []); }, []);
    var place = { width: width - 80, height: 300 }, near = isNear(data.budget, times);
    var room = Math.min((kit.widest(names, SMALL) + 16) / place.width, narrow ? 0.05 : 0.2);
    var along = fitted(near ? times.concat([data.budget]) : times, most, room), up = fitted(costs, most, 0.09);
    data.groups.forEach(function (group) {
      var shade = kit.colour(group.colour), points = group.names ? named(group, placed(group, along, up, place)) : group.points;
      series.push({ name: group.label, type: "scatter", data: points, encode: { x: 0, y: 1 }, symbol: group.symbol, symbolSize: group.size, z: group.names ? 4 : 2, itemStyle: { color: shade, opacity: group.opacity } });
      if (wide && group.names) series.push({ name: group.label, type: "custom", clip: true, data: group.points, silent: true, encode: { x: [2, 3], y: [4, 5] }, itemStyle: { color: shade }, renderItem: interval(shade) });
    });
    if (data.front.length > 1) {
      series.push({ name: "nothing is faster and cheaper", type: "line", data: data.front, symbol: "none", step: "end", lineStyle: { color: kit.colour("--series-4"), width: 2 }, itemStyle: { color: kit.colour("--series-4") }, silent: true });
    }
    var right = share(along, data.budget) > 0.5;
    if (near) {
      series.push({ name: "budget", type: "line", data: [], markLine: { symbol: "none", silent: true, data: [{ xAxis: data.budget }], lineStyle: { color: kit.colour("--critical"), type: "dashed" }, label: { color: kit.colour("--text"), align: right ? "right" : "left", formatter: data.limit } } });
    }
    option.series = series;
    kit.legend(option, data.groups.map(function (group) { return group.label; }), width);
    if (near) option.grid.top += 12;
    else option.title = { text: right ? data.limit + ", further right →" : "← " + data.limit + ", further left", top: option.grid.top - 8, left: right ? "right" : "center", textStyle: { color: kit.colour("--muted"), fontSize: 12, fontWeight: "normal" } };
    option.xAxis = kit.along(data.unit, Object.assign({ splitLine: { show: false } }, axisOf(along)));
    option.yAxis = kit.axis("USD", axisOf(up));
    option.tooltip.formatter = function (point) {
      var v = point.value;
      if (v.length < 7) return "";
      return kit.lines([data.labels[v[6]], kit.number(v[0]) + " " + data.unit + " (" + kit.number(v[2]) + " to " + kit.number(v[3]) + ")", kit.number(v[1]) + " USD (" + kit.number(v[4]) + " to " + kit.number(v[5]) + ")"]);
    };
    return option;
  };
})(window.ddlprof);
