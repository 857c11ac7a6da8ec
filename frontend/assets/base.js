/* Clientside callbacks and what every page needs: title, ages, connection, theme of charts. */
(function () {
  "use strict";
  var rlv = { lastBeat: Date.now(), connected: false, listeners: [] };

  /* Ages tick from the server's time stamps; the shift of the browser's clock is taken out. */
  rlv.clockShift = 0;
  function duration(s) {
    if (s < 60) { return Math.max(0, Math.floor(s)) + " s"; }
    if (s < 6000) { return Math.round(s / 60) + " min"; }
    if (s < 172800) { return Math.round(s / 3600) + " h"; }
    return Math.round(s / 86400) + " d";
  }
  function tick() {
    var now = Date.now() / 1000 - rlv.clockShift;
    document.querySelectorAll(".rlv-age[data-at]").forEach(function (node) {
      var text = duration(now - parseFloat(node.getAttribute("data-at")));
      if (node.textContent !== text) { node.textContent = text; }
    });
    var line = document.getElementById("rlv-connection");
    if (line) {
      var late = (Date.now() - rlv.lastBeat) / 1000 > 15;
      var said = late ? "No live connection for " + duration((Date.now() - rlv.lastBeat) / 1000) + ": what you see may be old" : "";
      if (line.textContent !== said) { line.textContent = said; }
    }
  }
  setInterval(tick, 1000);

  /* Charts follow the scheme: every colour of a figure is a token, so each value has one partner in the other scheme. */
  rlv.scheme = function () { return document.documentElement.getAttribute("data-mantine-color-scheme") === "dark" ? "dark" : "light"; };
  function swapped(value, table) {
    if (typeof value === "string") { return table[value] || value; }
    if (Array.isArray(value)) {
      if (value.length > 64 && typeof value[0] === "number") { return value; }
      return value.map(function (item) { return swapped(item, table); });
    }
    if (value && typeof value === "object" && Object.getPrototypeOf(value) === Object.prototype) {
      var made = {};
      Object.keys(value).forEach(function (key) {
        made[key] = key === "x" || key === "y" || key === "z" || key === "text" || key === "customdata" ? value[key] : swapped(value[key], table);
      });
      return made;
    }
    return value;
  }
  function schemeOf(gd) {
    var template = gd.layout && gd.layout.template;
    var colour = template && template.layout && template.layout.font && template.layout.font.color;
    if (!colour) { return null; }
    return window.rlvTheme.swap.dark[colour] ? "light" : "dark";
  }
  rlv.recolour = function (gd) {
    var has = schemeOf(gd);
    var wanted = rlv.scheme();
    if (!has || has === wanted || !window.Plotly) { return; }
    var table = window.rlvTheme.swap[wanted];
    window.Plotly.react(gd, swapped(gd.data, table), swapped(gd.layout, table), gd._context);
  };
  rlv.graphs = function () { return Array.prototype.slice.call(document.querySelectorAll(".js-plotly-plot")); };
  new MutationObserver(function () { rlv.graphs().forEach(rlv.recolour); })
    .observe(document.documentElement, { attributes: true, attributeFilter: ["data-mantine-color-scheme"] });

  /* Each chart once, as soon as plotly has made it. */
  var seen = new WeakSet();
  rlv.onGraph = [function (gd) {
    gd.on("plotly_afterplot", function () { rlv.recolour(gd); });
    rlv.recolour(gd);
  }];
  function lookForGraphs() {
    rlv.graphs().forEach(function (gd) {
      if (!seen.has(gd) && gd._fullLayout && gd.on) {
        seen.add(gd);
        rlv.onGraph.forEach(function (attach) { attach(gd); });
      }
    });
  }
  var looking = 0;
  new MutationObserver(function () {
    if (!looking) { looking = setTimeout(function () { looking = 0; lookForGraphs(); }, 60); }
  }).observe(document.documentElement, { childList: true, subtree: true });

  rlv.go = function (href) {
    window.history.pushState({}, "", href);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
  };

  window.rlv = rlv;
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.rlv = {
    title: function (title) {
      var run = document.querySelector("[data-run] h1");
      document.title = (run ? run.textContent + " · " : "") + (title ? title + " · " : "") + "RLVitals";
      if (rlv.path !== window.location.pathname) { window.scrollTo(0, 0); }
      rlv.path = window.location.pathname;
      return window.dash_clientside.no_update;
    },
    live: function (message) {
      if (message) {
        rlv.lastBeat = Date.now();
        rlv.clockShift = Date.now() / 1000 - message.at;
        rlv.listeners.forEach(function (listener) { listener(message); });
        tick();
      }
      return window.dash_clientside.no_update;
    },
    keepQuery: function (text) {
      var url = new URL(window.location.href);
      if (text) { url.searchParams.set("q", text); } else { url.searchParams.delete("q"); }
      window.history.replaceState(window.history.state, "", url);
      return window.dash_clientside.no_update;
    }
  };
})();
