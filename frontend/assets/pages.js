/* Addresses, hover cards and grid cells of the run's pages. Text goes to textContent only. */
(function () {
  "use strict";

  function go(address) {
    window.history.pushState({}, "", address);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    window.scrollTo(0, 0);
  }

  // Links made outside dcc.Link move within the page; with a modifier key the browser does what it always does.
  document.addEventListener("click", function (event) {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) { return; }
    var link = event.target.closest && event.target.closest("a.rlv-go");
    if (!link || link.origin !== window.location.origin) { return; }
    event.preventDefault();
    hideCard();
    go(link.pathname + link.search);
  });

  /* Keys of buttons ([ ] h l y), never while text is typed; data-copy puts the address on the clipboard. */
  function press(node) {
    if (node.getAttribute("data-copy") === "link") {
      var words = node.textContent;
      var done = function (said) { node.textContent = said; setTimeout(function () { node.textContent = words; }, 1500); };
      if (!navigator.clipboard) { done("Copy it from the bar above"); return; }
      navigator.clipboard.writeText(window.location.href).then(function () { done("Copied"); }, function () { done("Copy it from the bar above"); });
    } else { node.click(); }
  }
  document.addEventListener("click", function (event) {
    var node = event.target.closest && event.target.closest("[data-copy]");
    if (node) { press(node); }
  });
  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) { return; }
    var target = event.target;
    if (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) { return; }
    var copy = target.closest && target.closest("[data-copy]");
    if (copy && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); press(copy); return; }
    if (event.key.length !== 1) { return; }
    var node = Array.prototype.find.call(document.querySelectorAll("[data-key]"), function (n) { return n.getAttribute("data-key") === event.key; });
    if (node) { event.preventDefault(); press(node); }
  });

  /* One hover card for all: an element with data-card holds [title, [[name, value], ...], last line] as JSON. */
  var card = null;

  function element(name, className, text) {
    var made = document.createElement(name);
    if (className) { made.className = className; }
    if (text !== undefined) { made.textContent = text; }
    return made;
  }

  function showCard(target, title, rows, last) {
    if (!card) {
      card = element("div", "rlv-card");
      card.setAttribute("role", "tooltip");
      card.id = "rlv-card";
      document.body.appendChild(card);
    }
    card.replaceChildren(element("div", "rlv-card-title", title));
    rows.forEach(function (row) {
      var line = element("div", "rlv-card-row");
      line.appendChild(element("span", "", row[0]));
      line.appendChild(element("b", row[2] || "", row[1]));
      card.appendChild(line);
    });
    if (last) { card.appendChild(element("div", "rlv-card-last", last)); }
    card.hidden = false;
    var box = target.getBoundingClientRect();
    var left = box.right + 10;
    if (left + card.offsetWidth > window.innerWidth - 8) { left = box.left - card.offsetWidth - 10; }
    var top = Math.min(box.top + 14, window.innerHeight - card.offsetHeight - 8);
    if (left < 8) { left = 8; top = box.bottom + 10; }
    card.style.left = left + "px";
    card.style.top = Math.max(8, top) + "px";
  }

  function hideCard() { if (card) { card.hidden = true; } }

  function cardOf(event) {
    var target = event.target.closest && event.target.closest("[data-card]");
    if (!target) { hideCard(); return; }
    var held = JSON.parse(target.getAttribute("data-card"));
    showCard(target, held[0], held[1], held[2]);
  }

  document.addEventListener("mouseover", cardOf);
  document.addEventListener("focusin", cardOf);
  document.addEventListener("keydown", function (event) {
    if (event.key === "Escape") { hideCard(); }
    var cell = event.target.closest && event.target.closest(".heat-cell");
    if (!cell) { return; }
    var step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) { return; }
    var row = Number(cell.getAttribute("data-row")) + step[0];
    var column = Number(cell.getAttribute("data-column")) + step[1];
    var next = cell.closest(".heat-map").querySelector('[data-row="' + row + '"][data-column="' + column + '"]');
    if (next) {
      event.preventDefault();
      cell.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
  });

  /* AG Grid cells: React elements with text children, never markup. */
  var cells = window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {};
  cells.RlvLink = function (props) {
    if (!props.data) { return null; }
    return React.createElement("a", { href: props.data.address, className: "rlv-go rlv-cell-link" }, props.value);
  };
  cells.RlvText = function (props) {
    return React.createElement("bdi", { className: "rlv-cell-text", title: props.value }, props.value);
  };

  var filters = window.dashAgGridFunctions = window.dashAgGridFunctions || {};
  filters.rlvNumber = function (value, digits) {
    if (value === null || value === undefined) { return "–"; }
    if (typeof value !== "number") { return String(value); }
    var text = digits === undefined ? value.toLocaleString("en-US") : Math.abs(value).toFixed(digits);
    return digits === undefined ? text.replace("-", "\u2212") : (value < 0 && Number(text) !== 0 ? "\u2212" : "") + text;
  };

  // A row that is still on its way is empty: a dash says that the run has no such value.
  filters.rlvCell = function (params, digits) { return params.data ? filters.rlvNumber(params.value, digits) : ""; };

  var nothing = function () { return window.dash_clientside.no_update; };

  window.rlvPages = { go: go, element: element, showCard: showCard, hideCard: hideCard };
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.rlv_pages = {
    /* Controls -> query string. Nothing happens unless a value differs from what the page was drawn from. */
    address: function (values, ids, states) {
      var state = states && states[0];
      if (!state || !values) { return nothing(); }
      var query = Object.assign({}, state.query);
      var changed = false;
      ids.forEach(function (id, index) {
        var value = values[index];
        value = value === null || value === undefined || value === "*" ? "" : String(value).trim();
        var standard = state.defaults[id.key] || "";
        var before = id.key in state.query ? state.query[id.key] : standard;
        if (value === before) { return; }
        changed = true;
        if (value === standard) { delete query[id.key]; } else { query[id.key] = value; }
      });
      if (!changed) { return nothing(); }
      hideCard();
      var text = new URLSearchParams(query).toString();
      return text ? "?" + text : "";
    },

    /* A sorted column is part of the address, but the grid has already sorted itself. */
    sorted: function (request, columns) {
      var model = request && request.sortModel;
      if (!model) { return nothing(); }
      var query = new URLSearchParams(window.location.search);
      var text = model.length ? (model[0].sort === "desc" ? "-" : "") + model[0].colId : "-step";
      if (text === "-step") { query.delete("sort"); } else { query.set("sort", text); }
      var search = query.toString();
      window.history.replaceState(window.history.state, "", window.location.pathname + (search ? "?" + search : ""));
      return nothing();
    },

    /* A bar clicked or steps dragged over -> step=... */
    stepsChosen: function (click, relayout, states) {
      var state = states && states[0];
      if (!state) { return nothing(); }
      var query = Object.assign({}, state.query);
      var triggered = (window.dash_clientside.callback_context.triggered[0] || {}).prop_id || "";
      if (triggered.indexOf("clickData") > 0) {
        if (!click || !click.points.length) { return nothing(); }
        query.step = String(Math.round(click.points[0].x));
      } else if (relayout && relayout["xaxis.range[0]"] !== undefined) {
        query.step = Math.max(0, Math.ceil(relayout["xaxis.range[0]"])) + "-" + Math.max(0, Math.floor(relayout["xaxis.range[1]"]));
      } else if (relayout && relayout["xaxis.autorange"] && query.step) {
        delete query.step;
      } else { return nothing(); }
      var text = new URLSearchParams(query).toString();
      return text ? "?" + text : "";
    },

    pointChosen: function (click, question) {
      if (!click || !question || !click.points.length) { return nothing(); }
      go("/r/" + encodeURIComponent(question.run_id) + "/t/" + click.points[0].customdata[0]);
      return nothing();
    },

    /* Says that more has come in; what is being read stays where it is. */
    newer: function (message, question) {
      var step = message && question && message.rows[question.run_id];
      if (step === undefined || step === null) { return nothing(); }
      if (question.last_step !== null && step <= question.last_step) { return nothing(); }
      return "New rows up to step " + step + ". Reload to see them.";
    },

    changed: function (message, incident) {
      var news = message && incident && message.incidents.some(function (m) { return m.incident_id === incident && m.kind !== "incident.acknowledged"; });
      return news ? "This incident has changed. Reload to see how it stands." : nothing();
    },

    tokens: function (question) {
      if (question && window.rlvTokens) { window.rlvTokens.mount(question); }
      return nothing();
    }
  };
})();
