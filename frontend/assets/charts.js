/* The charts of a page that share one step axis: one crosshair, one zoom, live rows appended to what is in view. */
(function () {
  "use strict";
  var rlv = window.rlv;
  var MINUS = "\u2212";
  var OVERLAP = 20;
  var GAP_MS = 1000;

  function box() { return document.getElementById("overview-charts"); }
  function run() { var place = document.querySelector("[data-run]"); return place && place.getAttribute("data-run"); }
  function cards() { return Array.prototype.slice.call(document.querySelectorAll(".rlv-chart[data-chart]")); }
  function graphOf(card) {
    var gd = card.querySelector(".js-plotly-plot");
    return gd && gd._fullLayout && gd._fullLayout.xaxis && gd.data ? gd : null;
  }
  function graphs() {
    return cards().map(function (card) { return { card: card, gd: graphOf(card) }; }).filter(function (item) { return item.gd; });
  }

  /* Three significant digits, as the server writes them. */
  rlv.number = function (value) {
    if (value === null || value === undefined || !isFinite(value)) { return "\u2013"; }
    var size = Math.abs(value);
    var text;
    if (size === 0) { text = "0"; }
    else if (size >= 1e6 || size < 1e-4) { text = size.toExponential(2).replace("e+", "e").replace("e-", "e" + MINUS); }
    else if (size >= 100) { text = Math.round(size).toLocaleString("en-US"); }
    else { text = size.toFixed(Math.max(0, 2 - Math.floor(Math.log10(size)))); }
    return value < 0 && text !== "0" ? MINUS + text : text;
  };

  /* Crosshair: a line and a ring a chart, moved by transform; plotly's own hover is too slow for twelve charts. */
  function nearest(xs, step) {
    var low = 0, high = xs.length - 1;
    if (high < 0) { return -1; }
    while (low < high) {
      var middle = (low + high) >> 1;
      if (xs[middle] < step) { low = middle + 1; } else { high = middle; }
    }
    return low > 0 && step - xs[low - 1] <= xs[low] - step ? low - 1 : low;
  }
  function rawTrace(gd) {
    return gd.data.find(function (trace) { return trace.meta && trace.meta.role === "raw"; });
  }
  rlv.readAt = function (step) {
    graphs().forEach(function (item) {
      var layout = item.gd._fullLayout, axis = layout.xaxis, hair = item.card.querySelector(".rlv-hair");
      var ring = item.card.querySelector(".rlv-ring"), value = item.card.querySelector(".rlv-chart-value");
      var x = axis._offset + axis.d2p(step);
      var inside = x >= axis._offset - 1 && x <= axis._offset + axis._length + 1;
      hair.style.visibility = inside ? "visible" : "hidden";
      hair.style.transform = "translateX(" + x + "px)";
      var trace = rawTrace(item.gd);
      var at = trace ? nearest(trace.x, step) : -1;
      var y = at >= 0 ? trace.y[at] : null;
      if (value) { value.textContent = rlv.number(y); }
      var shown = inside && y !== null && y !== undefined;
      if (shown) {
        var height = layout.yaxis._offset + layout.yaxis.d2p(y);
        ring.style.transform = "translate(" + (axis._offset + axis.d2p(trace.x[at])) + "px," + height + "px)";
      }
      ring.style.visibility = shown ? "visible" : "hidden";
    });
    showPill(step);
    showReading(step);
  };
  rlv.stopReading = function () {
    cards().forEach(function (card) {
      card.querySelector(".rlv-hair").style.visibility = "hidden";
      card.querySelector(".rlv-ring").style.visibility = "hidden";
      var value = card.querySelector(".rlv-chart-value");
      if (value) { value.textContent = value.getAttribute("data-last"); }
    });
    var pill = document.querySelector(".rlv-pill");
    if (pill) { pill.style.visibility = "hidden"; }
  };
  function showPill(step) {
    var lane = document.querySelector(".rlv-lane"), pill = document.querySelector(".rlv-pill");
    if (!lane || !pill) { return; }
    var first = +lane.getAttribute("data-first"), last = +lane.getAttribute("data-last");
    pill.textContent = step.toLocaleString("en-US");
    pill.style.left = (100 * (step - first) / Math.max(1, last - first)) + "%";
    pill.style.visibility = step >= first && step <= last ? "visible" : "hidden";
  }
  function rolloutsOf(step) { return "/r/" + run() + "/rollouts?step=" + step; }
  function showReading(step) {
    var place = document.getElementById("overview-reading");
    if (!place) { return; }
    if (!place.firstChild) {
      place.appendChild(document.createElement("span"));
      var link = place.appendChild(document.createElement("a"));
      link.textContent = "Rollouts of this step";
      link.addEventListener("click", function (event) { event.preventDefault(); rlv.go(link.getAttribute("href")); });
    }
    place.firstChild.textContent = "Reading at step " + step.toLocaleString("en-US");
    place.lastChild.setAttribute("href", rolloutsOf(step));
  }
  function stepAt(gd, event) {
    var axis = gd._fullLayout.xaxis;
    var x = event.clientX - gd.getBoundingClientRect().left - axis._offset;
    if (x < -2 || x > axis._length + 2) { return null; }
    return Math.round(axis.p2d(Math.max(0, Math.min(axis._length, x))));
  }
  var waiting = 0;
  document.addEventListener("mousemove", function (event) {
    var card = event.target.closest && event.target.closest(".rlv-chart[data-chart]");
    if (waiting) { return; }
    waiting = requestAnimationFrame(function () {
      waiting = 0;
      var gd = card && graphOf(card);
      var step = gd ? stepAt(gd, event) : null;
      if (step === null) { if (rlv.reading) { rlv.reading = false; rlv.stopReading(); } return; }
      rlv.reading = true;
      rlv.readAt(step);
    });
  }, { passive: true });

  /* A click without a drag opens the rollouts of the step. Plotly swallows mouse events: listen before it does. */
  var down = null;
  document.addEventListener("mousedown", function (event) {
    var card = event.target.closest && event.target.closest(".rlv-chart[data-chart] .rlv-plot");
    down = card ? { x: event.clientX, y: event.clientY, card: card.closest(".rlv-chart"), at: Date.now() } : null;
  }, true);
  var clicked = 0;
  document.addEventListener("mouseup", function (event) {
    var from = down;
    down = null;
    if (!from || event.button !== 0 || Math.abs(event.clientX - from.x) > 3 || Math.abs(event.clientY - from.y) > 3) { return; }
    var gd = graphOf(from.card);
    var step = gd && run() ? stepAt(gd, event) : null;
    if (step === null) { return; }
    if (clicked) { clearTimeout(clicked); clicked = 0; return; }
    clicked = setTimeout(function () { clicked = 0; rlv.go(rolloutsOf(step)); }, 280);
  }, true);

  /* Zoom of one is zoom of all; the address keeps it. */
  var spreading = false;
  function spread(source, range) {
    if (spreading) { return; }
    spreading = true;
    var others = graphs().filter(function (item) { return item.gd !== source; });
    Promise.all(others.map(function (item) { return window.Plotly.relayout(item.gd, { "xaxis.range": range }); }))
      .then(function () { spreading = false; }, function () { spreading = false; });
    var url = new URL(window.location.href);
    var place = box(), whole = place && place.rlvSteps;
    rlv.zoomed = !(whole && Math.abs(range[0] - whole[0]) < 0.5 && Math.abs(range[1] - whole[1]) < 0.5);
    if (rlv.zoomed) {
      url.searchParams.set("from", Math.max(0, Math.round(range[0])));
      url.searchParams.set("to", Math.max(1, Math.round(range[1])));
    } else {
      url.searchParams.delete("from");
      url.searchParams.delete("to");
    }
    window.history.replaceState(window.history.state, "", url);
  }
  rlv.onGraph.push(function (gd) {
    if (!gd.closest(".rlv-chart[data-chart]")) { return; }
    var place = box();
    var asked = new URL(window.location.href).searchParams;
    rlv.zoomed = asked.has("from") || asked.has("to");
    if (place && !place.rlvSteps) { place.rlvSteps = place.getAttribute("data-steps").split(",").map(Number); }
    gd.on("plotly_relayout", function (change) {
      if (change["xaxis.range[0]"] !== undefined) { spread(gd, [change["xaxis.range[0]"], change["xaxis.range[1]"]]); }
    });
    gd.on("plotly_doubleclick", function () {
      if (place) { spread(null, place.rlvSteps.slice()); }
      return false;
    });
  });

  /* Live: what is in view asks for the points since its last step; the rest asks when it comes into view. */
  var inView = new WeakMap();
  var watcher = new IntersectionObserver(function (entries) {
    entries.forEach(function (entry) {
      inView.set(entry.target, entry.isIntersecting);
      if (entry.isIntersecting && entry.target.rlvStale) { schedule(); }
    });
  }, { rootMargin: "100px" });
  rlv.onGraph.push(function (gd) {
    var card = gd.closest(".rlv-chart[data-chart]");
    if (card) { watcher.observe(card); }
  });

  var timer = 0, busy = false, lastDraw = 0;
  function schedule() {
    if (timer || busy) { return; }
    timer = setTimeout(function () { timer = 0; fetchTails(); }, Math.max(0, GAP_MS - (Date.now() - lastDraw)));
  }
  rlv.listeners.push(function (message) {
    var id = run();
    if (id && message.rows[id] !== undefined && document.querySelector(".rlv-waits")) { redraw(); return; }
    if (!id || !box()) { return; }
    var mine = message.rows[id] !== undefined || message.incidents.some(function (item) { return item.run_id === id; });
    if (!mine) { return; }
    cards().forEach(function (card) { card.rlvStale = true; });
    schedule();
  });
  function lastStep(gd) {
    return gd.data.reduce(function (most, trace) {
      return trace.x.length && trace.meta && trace.meta.role !== "old" ? Math.max(most, trace.x[trace.x.length - 1]) : most;
    }, 0);
  }
  function ask(id, items, since) {
    var asked = new URL(window.location.href).searchParams, place = box();
    var query = new URLSearchParams({
      keys: items.map(function (item) { return item.card.getAttribute("data-chart"); }).join(","),
      since: since, smooth: (place && place.getAttribute("data-smooth")) || 10, s: asked.get("s") || "", scheme: rlv.scheme()
    });
    return fetch("/live/runs/" + id + "/charts?" + query, { credentials: "same-origin" }).then(function (answer) {
      if (!answer.ok) { throw new Error("charts " + answer.status); }
      return answer.json();
    });
  }
  function fetchTails() {
    var id = run();
    var items = graphs().filter(function (item) { return item.card.rlvStale && inView.get(item.card) !== false; });
    if (!id || !items.length || !window.Plotly) { return; }
    busy = true;
    var since = Math.max(0, Math.min.apply(null, items.map(function (item) { return lastStep(item.gd); })) - OVERLAP);
    items.forEach(function (item) { item.card.rlvStale = false; });
    ask(id, items, since).then(function (answer) {
      var again = apply(items, answer, false);
      return again.length ? ask(id, again, 0).then(function (whole) { apply(again, whole, true); }) : null;
    }).catch(function () { items.forEach(function (item) { item.card.rlvStale = true; }); })
      .then(function () {
        busy = false;
        lastDraw = Date.now();
        if (cards().some(function (card) { return card.rlvStale && inView.get(card) !== false; })) { schedule(); }
      });
  }
  /* Draws the answer; returns the charts whose bins or traces no longer fit, which need their whole data once. */
  function apply(items, answer, whole) {
    var place = box(), again = [];
    if (place) {
      place.rlvSteps = answer.steps.slice();
      if (place.getAttribute("data-panels") !== answer.panels) { redraw(); return []; }
    }
    items.forEach(function (item) {
      var fresh = answer.charts[item.card.getAttribute("data-chart")], gd = graphOf(item.card);
      if (!fresh || !gd) { return; }
      var fits = gd.layout.meta && gd.layout.meta.bin === fresh.bin && gd.data.length === fresh.traces.length;
      if (!fits && !whole) { again.push(item); return; }
      if (gd.data.length === fresh.traces.length) { extend(gd, fresh, whole ? -Infinity : fresh.from, answer.steps); }
      header(item.card, fresh);
    });
    return again;
  }
  /* A metric was logged for the first time: the page as a whole is asked for again, in place. */
  function redraw() { window.dash_clientside.set_props("redraw", { data: Date.now() }); }
  function extend(gd, fresh, from, steps) {
    gd.data.forEach(function (trace, index) {
      var keep = trace.x.findIndex(function (step) { return step >= from; });
      if (keep < 0) { keep = trace.x.length; }
      trace.x = trace.x.slice(0, keep).concat(fresh.traces[index].x);
      trace.y = trace.y.slice(0, keep).concat(fresh.traces[index].y);
    });
    var layout = gd.layout;
    layout.meta = Object.assign({}, layout.meta, { bin: fresh.bin });
    if (!rlv.zoomed) { layout.xaxis.range = steps.slice(); }
    var labels = {};
    (layout.shapes || []).forEach(function (shape) { if (shape.label) { labels[shape.type + shape.x0] = shape.label; } });
    layout.shapes = fresh.shapes.map(function (shape) {
      var label = labels[shape.type + shape.x0];
      return label ? Object.assign({ label: label }, shape) : shape;
    });
    layout.datarevision = (layout.datarevision || 0) + 1;
    window.Plotly.react(gd, gd.data, layout, gd._context);
  }
  function header(card, fresh) {
    var value = card.querySelector(".rlv-chart-value"), moved = card.querySelector(".rlv-chart-change");
    if (value) {
      value.setAttribute("data-last", fresh.value);
      if (!rlv.reading) { value.textContent = fresh.value; }
    }
    if (moved) {
      moved.textContent = fresh.moved ? fresh.moved[0] : "";
      moved.className = "rlv-chart-change is-" + (fresh.moved ? fresh.moved[1] : "quiet");
    }
    card.setAttribute("data-newest", fresh.value);
  }
})();
