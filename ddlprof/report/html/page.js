"use strict";
/* Draws the charts of the page as they come into sight, the others when there is nothing else to do, and all again when
   the theme or the width changes. */
(function () {
  var kit = window.ddlprof, plots = [].slice.call(document.querySelectorAll("[data-chart]"));
  var drawn = new Map();

  function data(plot) {
    return JSON.parse(document.getElementById(plot.dataset.source).textContent);
  }

  function controls(plot) {
    var figure = plot.closest("figure"), choice = figure.querySelector("select[data-choice]");
    var first = figure.querySelector("input[data-window=first]"), last = figure.querySelector("input[data-window=last]");
    return {
      choice: choice ? Number(choice.value) : 0,
      first: first ? Number(first.value) : null,
      last: last ? Number(last.value) : null
    };
  }

  function draw(plot) {
    var entry = drawn.get(plot);
    if (!entry) {
      entry = { chart: window.echarts.init(plot, null, { renderer: "svg" }), data: data(plot) };
      drawn.set(plot, entry);
      entry.chart.on("datazoom", function () { followZoom(plot, entry); });
      plot.addEventListener("pointerdown", function () { entry.held = true; });
      window.addEventListener("pointerup", function () { entry.held = false; settle(plot, entry); });
      if (entry.data.packed && window.DecompressionStream) {
        kit.unpack[plot.dataset.chart](entry.data).then(function () { plot.dataset.unpacked = "yes"; settle(plot, entry); });
      }
    }
    var narrow = plot.clientWidth < 560, chosen = controls(plot);
    entry.narrow = narrow;
    entry.view = viewOf(plot, entry);
    entry.chart.setOption(kit.charts[plot.dataset.chart](entry.data, chosen, narrow, plot.clientWidth), true);
    entry.chart.getZr().flush();  // now, and not with the next frame: a browser that only takes a picture has none
    plot.dataset.drawn = "yes";
    if (entry.view) plot.dataset.view = entry.view.name;
  }

  /* What of its data a chart shows, where that changes with the zoom. */
  function viewOf(plot, entry) {
    var find = kit.views[plot.dataset.chart];
    return find ? find(entry.data, controls(plot)) : null;
  }

  /* The fields say which steps are in sight, also where somebody dragged. */
  function followZoom(plot, entry) {
    var zoom = entry.chart.getOption().dataZoom[0], part = entry.view && entry.view.part, figure = plot.closest("figure");
    var first = figure.querySelector("input[data-window=first]"), last = figure.querySelector("input[data-window=last]");
    if (!first || !part || zoom.startValue === undefined) return;
    first.value = part.first[zoom.startValue];
    last.value = part.last[zoom.endValue];
    settle(plot, entry);
  }

  /* Another view is drawn when the hand rests: what is drawn anew in the middle of a gesture ends the gesture. */
  function settle(plot, entry) {
    clearTimeout(entry.timer);
    entry.timer = setTimeout(function () {
      var next = entry.held || !entry.view ? null : viewOf(plot, entry);
      if (next && (next.name !== entry.view.name || next.from !== entry.view.from)) draw(plot);
    }, 150);
  }

  /* A field has a step that there is, and the first is not after the last. */
  function keepInside(figure, field) {
    var which = field.dataset.window;
    if (!which) return;
    var other = figure.querySelector("input[data-window=" + (which === "first" ? "last" : "first") + "]");
    var least = Number(which === "last" ? other.value : field.min), most = Number(which === "first" ? other.value : field.max);
    var asked = field.value === "" ? Number(field.defaultValue) : Math.round(Number(field.value));
    field.value = Math.min(Math.max(asked, least), most);
  }

  function redraw() { drawn.forEach(function (_, plot) { draw(plot); }); }

  function everything() { plots.forEach(function (plot) { if (!drawn.has(plot)) draw(plot); }); }

  plots.forEach(function (plot) {
    var figure = plot.closest("figure");
    figure.querySelectorAll("select, input").forEach(function (control) {
      control.addEventListener("change", function () { keepInside(figure, control); draw(plot); });
    });
    figure.querySelectorAll("button[data-window=all]").forEach(function (button) {
      button.addEventListener("click", function () {
        figure.querySelectorAll("input[data-window]").forEach(function (input) { input.value = input.defaultValue; });
        draw(plot);
      });
    });
  });

  if ("IntersectionObserver" in window) {
    var seen = new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) {
        if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
      });
    }, { rootMargin: "400px" });
    plots.forEach(function (plot) { seen.observe(plot); });
    whenIdle();
  } else {
    everything();
  }

  /* A picture of the whole page shows charts that nobody scrolled to; one at a time, so that the page stays awake. */
  function whenIdle() {
    var wait = window.requestIdleCallback || function (work) { setTimeout(work, 200); };
    wait(function () {
      var next = plots.filter(function (plot) { return !drawn.has(plot); })[0];
      if (!next) return;
      draw(next);
      whenIdle();
    }, { timeout: 100 });  // a busy machine is never idle, and a picture waits for some seconds only
  }

  var timer = null, width = window.innerWidth;
  window.addEventListener("resize", function () {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(timer);
    timer = setTimeout(function () {
      drawn.forEach(function (entry, plot) {
        entry.chart.resize();
        if (entry.narrow !== plot.clientWidth < 560) draw(plot);
      });
    }, 120);
  });

  /* On a phone the links of the page are folded. */
  var links = document.querySelector("nav details"), phone = window.matchMedia("(max-width: 560px)");
  function fold() { links.open = !phone.matches; }
  phone.addEventListener("change", fold);
  fold();

  var root = document.documentElement, button = document.getElementById("theme");
  var wishes = window.matchMedia("(prefers-color-scheme: dark)");

  function dark() { return root.dataset.theme ? root.dataset.theme === "dark" : wishes.matches; }

  function label() { button.textContent = dark() ? "Light" : "Dark"; }

  button.hidden = false;
  button.setAttribute("aria-label", "Switch between light and dark");
  button.addEventListener("click", function () {
    root.dataset.theme = dark() ? "light" : "dark";
    label();
    redraw();
  });
  wishes.addEventListener("change", function () { label(); redraw(); });
  label();

  /* Paper is light and has no scrolling. Its width is not known: a drawing of one width is scaled to it. */
  var before = null, paper = 900;
  window.addEventListener("beforeprint", function () {
    before = root.dataset.theme || "";
    root.dataset.theme = "light";
    everything();
    redraw();
    drawn.forEach(function (entry, plot) {
      entry.chart.resize({ width: paper });
      entry.chart.getZr().flush();  // paper has no next frame
      plot.querySelector("svg").setAttribute("viewBox", "0 0 " + paper + " " + entry.chart.getHeight());
    });
  });
  window.addEventListener("afterprint", function () {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    drawn.forEach(function (entry, plot) {
      plot.querySelector("svg").removeAttribute("viewBox");
      entry.chart.resize({ width: "auto" });
    });
    redraw();
  });
})();
