/* The token map of one trajectory. One fetch, then only what is in view is drawn. Text goes to textContent only. */
(function () {
  "use strict";

  var CELL = 43, LINE = 21, OVERSCAN = 12;
  var STRIPS = { delta: 146, logprob: 124, entropy: 72 };
  var SVG = "http://www.w3.org/2000/svg";
  var MINUS = "\u2212";
  var COLOURS = [
    ["logprob", "Logprob"], ["delta", "\u0394 logprob"], ["ratio", "Ratio"], ["advantage", "Advantage"], ["entropy", "Entropy"], ["mask", "Mask"]
  ];
  var SHOWS = [["cells", "Cells"], ["text", "Text"], ["raw", "Raw"]];
  var WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\u{1f300}-\u{1faff}]|[\u{20000}-\u{3fffd}]/u;
  var NARROW = /[\u0300-\u036f\u200c\u200d\ufe00-\ufe0f]/;
  // The same characters as ingest/text.py: what cannot be seen, or would re-order its neighbours, gets a visible mark.
  var HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|[\ud800-\udfff]/gu;

  var element = function (name, className, text) { return window.rlvPages.element(name, className, text); };

  function visible(text) {
    return text.replace(HIDDEN, function (character) {
      var code = character.codePointAt(0);
      if (code < 0x20) { return String.fromCharCode(0x2400 + code); }
      if (code === 0x7f) { return "\u2421"; }
      return "\u27e8U+" + code.toString(16).toUpperCase().padStart(4, "0") + "\u27e9";
    });
  }

  function number(value, digits) {
    if (value === null || value === undefined) { return "\u2013"; }
    if (typeof value !== "number") { return value === "NaN" ? "NaN" : value === "Infinity" ? "\u221e" : MINUS + "\u221e"; }
    if (!isFinite(value)) { return isNaN(value) ? "NaN" : value > 0 ? "\u221e" : MINUS + "\u221e"; }
    var text = Math.abs(value).toFixed(digits === undefined ? 3 : digits);
    return (value < 0 && Number(text) !== 0 ? MINUS : "") + text;
  }
  function signed(value, digits) {
    var text = number(value, digits);
    return typeof value === "number" && value > 0 && /[1-9\u221e]/.test(text) ? "+" + text : text;
  }
  function ratioText(value) {
    if (typeof value !== "number") { return number(value); }
    return value >= 0.01 && value < 1000 ? number(value, 2) : value === 0 ? "0" : value.toPrecision(2).replace("e-", "e" + MINUS).replace("e+", "e");
  }

  /* Values of one token; null: not written, or no value there. */
  function Tokens(data, question) {
    this.data = data;
    this.question = question;
    var arrays = [data.ids, data.texts, data.rollout_logprobs, data.old_logprobs, data.current_logprobs, data.entropies, data.response_mask];
    this.count = 0;
    for (var k = 0; k < arrays.length; k++) { if (arrays[k]) { this.count = arrays[k].length; break; } }
    this.trainer = data.old_logprobs || data.current_logprobs;
    this.prompt = data.prompt_tokens;
  }
  Tokens.prototype = {
    at: function (name, i) { var a = this.data[name]; return a ? a[i] : null; },
    trainerAt: function (i) { return this.trainer ? this.trainer[i] : null; },
    given: function (i) { var m = this.data.response_mask; return m ? m[i] === 1 : i >= this.prompt; },
    trained: function (i) {
      var m = this.data.loss_mask || this.data.response_mask;
      return m ? m[i] === 1 : null;
    },
    difference: function (a, b) {
      if (a === null || b === null || a === undefined || b === undefined) { return null; }
      return typeof a === "number" && typeof b === "number" ? a - b : NaN;
    },
    delta: function (i) { return this.given(i) ? this.difference(this.trainerAt(i), this.at("rollout_logprobs", i)) : null; },
    update: function (i) { return this.given(i) ? this.difference(this.at("current_logprobs", i), this.at("old_logprobs", i)) : null; },
    advantage: function (i) {
      if (!this.given(i)) { return null; }
      return this.data.advantages ? this.data.advantages[i] : this.question.advantage;
    },
    logprob: function (i) {
      if (!this.given(i)) { return null; }
      return this.trainer ? this.trainer[i] : this.at("rollout_logprobs", i);
    },
    entropy: function (i) { return this.given(i) ? this.at("entropies", i) : null; },
    has: function (colour) {
      var d = this.data;
      return {
        logprob: !!(this.trainer || d.rollout_logprobs), delta: !!(this.trainer && d.rollout_logprobs),
        ratio: !!(d.current_logprobs && d.old_logprobs), advantage: !!d.advantages || this.question.advantage !== null,
        entropy: !!d.entropies, mask: !!(d.response_mask || d.loss_mask)
      }[colour];
    },
    needs: function (colour) {
      return {
        logprob: "old_logprobs or rollout_logprobs", delta: "rollout_logprobs and old_logprobs", ratio: "current_logprobs and old_logprobs",
        advantage: "advantages", entropy: "entropies", mask: "response_mask or loss_mask"
      }[colour];
    },
    text: function (i) {
      var text = this.at("texts", i);
      if (text !== null && text !== undefined) { return visible(text); }
      var id = this.at("ids", i);
      if (i === this.count - 1 && this.question.finish === "stop" && this.data.derived_texts) { return "eos"; }
      return id === null || id === undefined ? "?" : "#" + id;
    }
  };

  var SCALES = {
    delta: { diverging: 6, words: ["trainer lower", "higher"], unit: "nats" },
    ratio: { diverging: 0.7, words: ["less likely now", "more likely"], unit: "\u00d70.5 to \u00d72", ends: ["\u00d70.5", "\u00d72"] },
    advantage: { diverging: 3, words: ["pushed down", "pushed up"] },
    logprob: { low: 0, high: 8, flip: true, ends: ["0", MINUS + "8"], words: ["likely", "unlikely"] },
    entropy: { low: 0, high: 3, ends: ["0", "3 nats"], words: ["sure", "unsure"] }
  };

  function valueOf(tokens, colour, i) {
    return colour === "ratio" ? tokens.update(i) : colour === "mask" ? null : tokens[colour](i);
  }

  /* {css, strong, upper}: the ground of a token; null: outline only. */
  function ground(tokens, colour, i) {
    if (colour === "mask") {
      var inLoss = tokens.trained(i), own = tokens.given(i);
      if (tokens.data.loss_mask && inLoss !== own) { return { css: "var(--rlv-warn-soft)", odd: true, share: 0.4 }; }
      return inLoss ? { css: "var(--rlv-accent-soft)", share: 0.1 } : null;
    }
    var value = valueOf(tokens, colour, i);
    if (value === null || value === undefined) { return null; }
    if (typeof value !== "number" || isNaN(value)) { return { css: "var(--rlv-critical-soft)", odd: true, share: 1 }; }
    var scale = SCALES[colour];
    if (scale.diverging) {
      var share = Math.pow(Math.min(1, Math.abs(value) / scale.diverging), 0.55);
      var end = value < 0 ? "trainer-lower" : "trainer-higher";
      return {
        css: "color-mix(in srgb, var(--rlv-" + end + ") " + Math.round(share * 100) + "%, var(--rlv-diverging-middle))",
        strong: share > 0.62, share: share, sign: value < 0 ? -1 : 1
      };
    }
    var level = Math.min(1, Math.max(0, (scale.flip ? -value : value) / scale.high)) * 7;
    var lower = Math.min(6, Math.floor(level));
    return {
      css: "color-mix(in oklab, var(--rlv-heat-" + (lower + 2) + ") " + Math.round((level - lower) * 100) + "%, var(--rlv-heat-" + (lower + 1) + "))",
      upper: level >= 3.5, heat: true, share: level / 7
    };
  }

  function paint(node, tokens, colour, i) {
    var g = ground(tokens, colour, i);
    node.style.background = g ? g.css : "";
    node.className = "tok" + (g ? (g.strong ? " is-strong" : "") + (g.heat ? (g.upper ? " is-upper" : " is-under") : "") + (g.odd ? " is-odd" : "") : " is-bare");
    return g;
  }

  function Map_(host, tokens, question) {
    this.host = host;
    this.tokens = tokens;
    this.question = question;
    var order = ["delta", "logprob", "entropy", "advantage", "mask", "ratio"];
    var wanted = question.color && tokens.has(question.color) ? question.color : null;
    this.colour = wanted || order.filter(function (c) { return tokens.has(c); })[0] || "mask";
    this.show = question.show || (tokens.count <= 60 ? "cells" : "text");
    this.marked = question.tok;
    this.cursor = this.marked ? this.marked[0] : -1;
    this.build();
  }

  Map_.prototype = {
    build: function () {
      var self = this;
      this.bar = element("div", "tok-bar");
      this.view = element("div", "tok-view");
      this.view.tabIndex = 0;
      this.view.setAttribute("role", "group");
      this.view.setAttribute("aria-label", this.tokens.count + " tokens. Arrow keys move, Enter marks, t changes the colour.");
      this.view.setAttribute("aria-describedby", "rlv-card");
      this.facts = element("div", "tok-facts");
      this.host.replaceChildren(this.bar, this.view, this.facts);
      this.view.addEventListener("mousemove", function (event) { self.hover(event.target); });
      this.view.addEventListener("mouseleave", function () { self.unhover(); });
      // With Shift a range of tokens is marked, not text selected.
      this.view.addEventListener("mousedown", function (event) { if (event.shiftKey) { event.preventDefault(); } });
      this.view.addEventListener("click", function (event) { self.click(event); });
      this.view.addEventListener("keydown", function (event) { self.key(event); });
      this.view.addEventListener("blur", function () { window.rlvPages.hideCard(); });
      this.resized = new ResizeObserver(function () {
        if (!document.body.contains(self.host)) { self.resized.disconnect(); return; }
        if (self.width !== self.view.clientWidth) { self.draw(); }
      });
      this.draw();
      this.resized.observe(this.view);
      if (this.marked) { this.scrollTo(this.marked[0]); }
    },

    choices: function (options, chosen, pick, enabled, name) {
      var group = element("div", "tok-choice");
      group.setAttribute("role", "radiogroup");
      group.setAttribute("aria-label", name);
      options.forEach(function (option) {
        var button = element("button", option[0] === chosen ? "is-chosen" : "", option[1]);
        button.type = "button";
        button.setAttribute("role", "radio");
        button.setAttribute("aria-checked", String(option[0] === chosen));
        var missing = enabled(option[0]);
        if (missing) { button.disabled = true; button.title = missing; }
        button.addEventListener("click", function () { pick(option[0]); });
        group.appendChild(button);
      });
      return group;
    },

    draw: function () {
      var self = this, tokens = this.tokens;
      this.width = this.view.clientWidth;
      this.bar.replaceChildren(
        this.choices(COLOURS, this.colour, function (c) { self.colour = c; self.remember(); self.draw(); }, function (c) {
          return tokens.has(c) ? "" : "Not written: " + tokens.needs(c);
        }, "Colour"),
        this.choices(SHOWS, this.show, function (s) { self.show = s; self.remember(); self.draw(); if (self.cursor >= 0) { self.scrollTo(self.cursor); } },
          function () { return ""; }, "Density"),
        this.legend()
      );
      this.view.replaceChildren();
      this.layer = null;
      if (this.show === "cells") { this.drawCells(); } else if (this.show === "text") { this.drawText(); } else { this.drawRaw(); }
      this.drawFacts();
    },

    legend: function () {
      var box = element("div", "tok-legend"), scale = SCALES[this.colour];
      if (this.colour === "mask") {
        var odd = this.tokens.data.loss_mask ? this.countWhere(function (t, i) { return t.trained(i) !== t.given(i); }) : 0;
        box.appendChild(element("span", "tok-key is-trained"));
        box.appendChild(element("span", "", "trained on"));
        box.appendChild(element("span", "tok-key is-bare"));
        box.appendChild(element("span", "", "not"));
        if (this.tokens.data.loss_mask) {
          box.appendChild(element("span", "tok-key is-odd"));
          box.appendChild(element("span", odd ? "is-warn" : "", odd + " where loss mask and response mask differ"));
        }
        return box;
      }
      var ends = scale.ends || [MINUS + scale.diverging, "+" + scale.diverging];
      box.appendChild(element("span", scale.diverging ? "is-lower" : "", scale.words[0]));
      box.appendChild(element("span", "num", ends[0]));
      box.appendChild(element("span", "tok-ramp" + (scale.diverging ? " is-diverging" : "")));
      box.appendChild(element("span", "num", ends[1]));
      box.appendChild(element("span", scale.diverging ? "is-higher" : "", scale.words[1]));
      var colour = this.colour, limit = scale.diverging || scale.high;
      var beyond = this.countWhere(function (t, i) { var v = valueOf(t, colour, i); return typeof v === "number" && Math.abs(v) > limit; });
      if (beyond) { box.appendChild(element("span", "", beyond + " beyond")); }
      return box;
    },

    countWhere: function (test) {
      var found = 0;
      for (var i = 0; i < this.tokens.count; i++) { if (test(this.tokens, i)) { found++; } }
      return found;
    },

    isMarked: function (i) { return !!this.marked && i >= this.marked[0] && i <= this.marked[1]; },

    /* Cells: one column a token, strips and value rows below on the same columns. */
    drawCells: function () {
      var self = this, tokens = this.tokens, top = 18;
      this.rows = [];
      if (tokens.has("delta")) { this.rows.push({ kind: "bars", name: "\u0394 logprob", more: ["trainer " + MINUS + " rollout"], height: STRIPS.delta, get: [function (i) { return tokens.delta(i); }] }); }
      var lines = [["rollout", "rollout_logprobs", 1], ["trainer", null, 2], ["reference", "ref_logprobs", 0]].filter(function (l) {
        return l[1] ? tokens.data[l[1]] : tokens.trainer;
      });
      if (lines.length) {
        this.rows.push({ kind: "lines", name: "Logprob", lines: lines, height: STRIPS.logprob, get: lines.map(function (l) {
          return function (i) { return tokens.given(i) ? (l[1] ? tokens.at(l[1], i) : tokens.trainerAt(i)) : null; };
        }) });
      }
      if (tokens.has("entropy")) { this.rows.push({ kind: "lines", name: "Entropy", more: ["nats"], lines: [["", null, 5]], height: STRIPS.entropy, get: [function (i) { return tokens.entropy(i); }] }); }
      this.values = [];
      if (tokens.has("ratio")) { this.values.push(["Ratio, update", function (i) { var v = tokens.update(i); return v === null ? null : ratioText(Math.exp(v)); }]); }
      if (tokens.has("delta")) { this.values.push(["Ratio, behaviour", function (i) { var v = tokens.delta(i); return v === null ? null : ratioText(Math.exp(v)); }, function (i) { var v = tokens.delta(i); return typeof v === "number" && Math.exp(v) < 0.5; }]); }
      if (tokens.has("advantage")) { this.values.push(["Advantage", function (i) { var v = tokens.advantage(i); return v === null ? null : signed(v, 2); }]); }
      if (tokens.data.policy_versions) { this.values.push(["Policy version", function (i) { var v = tokens.at("policy_versions", i); return v === null ? null : String(v); }]); }
      this.values.push(["Trained on", function (i) { var t = tokens.trained(i); return t === null ? null : t ? "yes" : "no"; }]);

      var labels = element("div", "tok-labels"), y = top + 58 + 20;
      labels.appendChild(this.label("position", top + 58 + 1, "is-faint"));
      this.rows.forEach(function (row) {
        row.top = y + 12;
        self.extent(row);
        labels.appendChild(self.label(row.name, row.top, "is-strong"));
        (row.more || []).forEach(function (text, k) { labels.appendChild(self.label(text, row.top + 15 * (k + 1), "is-faint")); });
        if (row.lines && row.lines.length > 1) { row.lines.forEach(function (l, k) { labels.appendChild(self.label(l[0], row.top + 15 * (k + 1), "is-series-" + l[2])); }); }
        row.ticks.forEach(function (tick) { labels.appendChild(self.label(number(tick, Math.abs(tick) < 2 && tick % 1 ? 2 : 0), row.top + row.y(tick) - 7, "is-tick")); });
        y = row.top + row.height;
      });
      y += 8;
      this.values.forEach(function (row) { row.top = y; labels.appendChild(self.label(row[0], y + 4, "")); y += 24; });

      var scroll = element("div", "tok-scroll"), plane = element("div", "tok-plane");
      plane.style.width = tokens.count * CELL + "px";
      plane.style.height = y + "px";
      labels.style.height = y + "px";
      scroll.appendChild(plane);
      var body = element("div", "tok-cells");
      body.appendChild(labels);
      body.appendChild(scroll);
      this.view.appendChild(body);
      this.scroll = scroll;
      this.plane = plane;
      this.drawn = [-1, -1];
      scroll.addEventListener("scroll", function () { self.soon(); }, { passive: true });
      this.drawWindow();
    },

    label: function (text, y, more) {
      var node = element("span", "tok-label " + more, text);
      node.style.top = y + "px";
      return node;
    },

    extent: function (row) {
      var low = 0, high = 0, count = this.tokens.count;
      row.get.forEach(function (get) {
        for (var i = 0; i < count; i++) {
          var v = get(i);
          if (typeof v === "number" && isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
        }
      });
      var span = Math.max(high - low, row.kind === "bars" ? 0.5 : 1);
      var step = Math.pow(10, Math.floor(Math.log10(span / 2)));
      while (span / step > 4) { step *= span / step > 8 ? 4 : 2; }
      if (low < 0) { low = -Math.ceil(-low / step - 1e-9) * step; }
      if (high > 0) { high = Math.ceil(high / step - 1e-9) * step; }
      if (low === high) { high = low + step; }
      row.ticks = [];
      for (var t = low; t <= high + step / 2; t += step) { row.ticks.push(Math.abs(t) < 1e-12 ? 0 : t); }
      row.y = function (v) { return 4 + (row.height - 8) * (high - Math.min(high, Math.max(low, v))) / (high - low); };
    },

    soon: function () {
      var self = this;
      if (this.waiting) { return; }
      this.waiting = true;
      requestAnimationFrame(function () {
        self.waiting = false;
        if (self.show === "cells") { self.drawWindow(); } else if (self.show === "text") { self.drawLines(); }
        self.drawBox();
      });
    },

    inView: function () {
      if (this.show === "cells") {
        var first = Math.floor(this.scroll.scrollLeft / CELL);
        return [first, Math.min(this.tokens.count - 1, first + Math.ceil(this.scroll.clientWidth / CELL))];
      }
      var top = Math.floor(this.scroll.scrollTop / LINE), bottom = Math.min(this.lines.length - 1, top + Math.ceil(this.scroll.clientHeight / LINE));
      var last = bottom + 1 < this.lines.length ? this.pieces[this.lines[bottom + 1]][0] : this.tokens.count - 1;
      return [this.pieces[this.lines[top]] ? this.pieces[this.lines[top]][0] : 0, last];
    },

    drawWindow: function () {
      var range = this.inView(), from = Math.max(0, range[0] - OVERSCAN), to = Math.min(this.tokens.count - 1, range[1] + OVERSCAN);
      if (this.layer && this.drawn[0] <= range[0] && this.drawn[1] >= range[1]) { return; }
      this.drawn = [from, to];
      var layer = element("div", "tok-layer"), tokens = this.tokens, self = this;
      layer.style.left = from * CELL + "px";
      this.captions(layer, from);
      for (var i = from; i <= to; i++) {
        var cell = element("div");
        paint(cell, tokens, this.colour, i);
        cell.className += " tok-cell" + (this.isMarked(i) ? " is-marked" : "") + (i === this.cursor ? " is-cursor" : "");
        cell.setAttribute("data-i", i);
        cell.style.left = (i - from) * CELL + "px";
        var text = tokens.text(i);
        cell.appendChild(element("span", "tok-big" + (text.length > 2 ? text.length > 5 ? " is-tight" : " is-mid" : ""), text.replace(/\n/g, "\u21b5").replace(/\t/g, "\u2192").replace(/ /g, "\u2423")));
        cell.appendChild(element("span", "tok-value", this.cellValue(i)));
        layer.appendChild(cell);
        var at = element("span", "tok-at" + (i === this.cursor ? " is-cursor" : ""), String(i));
        at.style.left = (i - from) * CELL + "px";
        layer.appendChild(at);
        this.values.forEach(function (row) {
          var words = row[1](i), node = element("span", "tok-row-value" + (row[2] && row[2](i) ? " is-lower" : "") + (words === null || words === "no" ? " is-faint" : ""), words === null ? "\u2013" : words);
          node.style.left = (i - from) * CELL + "px";
          node.style.top = row.top + "px";
          layer.appendChild(node);
        });
      }
      this.rows.forEach(function (row) { layer.appendChild(self.strip(row, from, to)); });
      this.plane.replaceChildren(layer);
      this.layer = layer;
    },

    captions: function (layer, from) {
      var tokens = this.tokens;
      if (tokens.prompt && from === 0) {
        var p = element("span", "tok-caption", "Prompt, " + tokens.prompt + " token" + (tokens.prompt === 1 ? "" : "s") + ", not trained on");
        p.style.left = "0px";
        p.style.maxWidth = tokens.prompt * CELL - 8 + "px";
        layer.appendChild(p);
      }
      var r = element("span", "tok-caption is-response", "Response, " + (tokens.count - tokens.prompt) + " tokens");
      r.style.left = (tokens.prompt - from) * CELL + 3 + "px";
      layer.appendChild(r);
    },

    cellValue: function (i) {
      if (this.colour === "mask") { return ""; }
      var v = valueOf(this.tokens, this.colour, i);
      if (v === null || v === undefined) { return ""; }
      if (this.colour === "ratio") { return ratioText(Math.exp(v)); }
      return this.colour === "delta" || this.colour === "advantage" ? signed(v, 2) : number(v, 2);
    },

    strip: function (row, from, to) {
      var svg = document.createElementNS(SVG, "svg"), width = (to - from + 1) * CELL;
      svg.setAttribute("class", "tok-strip");
      svg.setAttribute("width", width);
      svg.setAttribute("height", row.height);
      svg.style.top = row.top + "px";
      function add(name, attributes, className) {
        var node = document.createElementNS(SVG, name);
        Object.keys(attributes).forEach(function (key) { node.setAttribute(key, attributes[key]); });
        node.setAttribute("class", className);
        svg.appendChild(node);
        return node;
      }
      var prompt = Math.max(0, this.tokens.prompt - from) * CELL;
      if (prompt) { add("rect", { x: 0, y: 0, width: Math.min(prompt, width) - 3, height: row.height }, "strip-prompt"); }
      if (this.cursor >= from && this.cursor <= to) { add("rect", { x: (this.cursor - from) * CELL, y: 0, width: CELL - 3, height: row.height }, "strip-cursor"); }
      row.ticks.forEach(function (tick) { add("line", { x1: 0, x2: width, y1: row.y(tick), y2: row.y(tick) }, tick === 0 ? "strip-zero" : "strip-grid"); });
      for (var k = 0; k < row.get.length; k++) {
        var path = "", open = false;
        for (var i = from; i <= to; i++) {
          var v = row.get[k](i), x = (i - from + 0.5) * CELL - 1.5;
          if (typeof v !== "number" || !isFinite(v)) {
            if (v !== null && v !== undefined) { add("path", { d: "M" + (x - 3) + " " + (row.height - 8) + "l6 6m0 -6l-6 6" }, "strip-nan"); }
            open = false;
            continue;
          }
          if (row.kind === "bars") {
            var zero = row.y(0), end = row.y(v);
            var bar = add("rect", { x: x - 13.5, y: Math.min(zero, end), width: 27, height: Math.max(1, Math.abs(end - zero)), rx: 1 }, "strip-bar");
            bar.style.fill = ground(this.tokens, "delta", i).css;
          } else {
            path += (open ? "L" : "M") + x + " " + row.y(v);
            open = true;
            add("circle", { cx: x, cy: row.y(v), r: i === this.cursor ? 3.4 : 1.9 }, "strip-dot strip-series-" + row.lines[k][2]);
          }
        }
        if (path) { add("path", { d: path }, "strip-line strip-series-" + row.lines[k][2]); }
      }
      return svg;
    },

    /* Text: lines of real text, broken by the width of their characters. */
    drawText: function () {
      var self = this, probe = element("span", "tok-probe", "0000000000");
      this.view.appendChild(probe);
      var one = probe.getBoundingClientRect().width / 10 || 7.2;
      probe.remove();
      this.breakLines(Math.max(10, Math.floor((this.width - 28) / one)));
      var scroll = element("div", "tok-lines"), plane = element("div", "tok-plane");
      plane.style.height = this.lines.length * LINE + "px";
      scroll.style.maxHeight = "min(" + (this.lines.length * LINE + 4) + "px, max(320px, calc(100vh - 330px)))";
      scroll.appendChild(plane);
      this.view.appendChild(scroll);
      this.scroll = scroll;
      this.plane = plane;
      this.drawn = [-1, -1];
      scroll.addEventListener("scroll", function () { self.soon(); }, { passive: true });
      this.drawLines();
    },

    breakLines: function (columns) {
      var pieces = [], lines = [0], used = 0;
      for (var i = 0; i < this.tokens.count; i++) {
        var characters = Array.from(this.tokens.text(i)), piece = "";
        for (var k = 0; k < characters.length; k++) {
          var c = characters[k], w = c === "\t" ? 4 : NARROW.test(c) ? 0 : c > "\u1100" && WIDE.test(c) ? 2 : 1;
          if (used + w > columns) {
            if (piece) { pieces.push([i, piece]); piece = ""; }
            lines.push(pieces.length);
            used = 0;
          }
          if (c === "\n") {
            pieces.push([i, piece + "\u21b5"]);
            piece = "";
            lines.push(pieces.length);
            used = 0;
          } else { piece += c; used += w; }
        }
        if (piece || !characters.length) { pieces.push([i, piece]); }
      }
      if (lines.length > 1 && lines[lines.length - 1] >= pieces.length) { lines.pop(); }
      this.pieces = pieces;
      this.lines = lines;
    },

    drawLines: function () {
      var top = Math.max(0, Math.floor(this.scroll.scrollTop / LINE) - OVERSCAN);
      var bottom = Math.min(this.lines.length - 1, Math.floor(this.scroll.scrollTop / LINE) + Math.ceil(this.scroll.clientHeight / LINE) + OVERSCAN);
      if (this.layer && this.drawn[0] <= Math.max(0, top + OVERSCAN - 1) && this.drawn[1] >= Math.min(this.lines.length - 1, bottom - OVERSCAN + 1)) { return; }
      this.drawn = [top, bottom];
      var layer = element("div", "tok-layer");
      layer.style.top = top * LINE + "px";
      for (var row = top; row <= bottom; row++) {
        var line = element("div", "tok-line"), end = row + 1 < this.lines.length ? this.lines[row + 1] : this.pieces.length;
        for (var p = this.lines[row]; p < end; p++) {
          var i = this.pieces[p][0], span = element("span");
          paint(span, this.tokens, this.colour, i);
          span.className += (this.isMarked(i) ? " is-marked" : "") + (i === this.cursor ? " is-cursor" : "");
          span.setAttribute("data-i", i);
          span.textContent = this.pieces[p][1];
          line.appendChild(span);
        }
        layer.appendChild(line);
      }
      this.plane.replaceChildren(layer);
      this.layer = layer;
    },

    drawRaw: function () {
      var raw = element("pre", "rlv-text tok-raw"), parts = [];
      for (var i = 0; i < this.tokens.count; i++) { parts.push(this.tokens.text(i)); }
      raw.textContent = parts.join("");
      raw.dir = "auto";
      this.view.appendChild(raw);
    },

    /* All tokens on one canvas, the window on it, the largest differences, what is marked. */
    drawFacts: function () {
      var self = this;
      this.facts.replaceChildren();
      this.map = null;
      if (this.show !== "raw") {
        var row = this.fact("All tokens");
        this.map = element("canvas", "tok-map");
        this.map.setAttribute("aria-hidden", "true");
        this.span = element("span", "tok-span");
        var frame = element("span", "tok-frame");
        this.box = element("span", "tok-box");
        frame.appendChild(this.map);
        frame.appendChild(this.box);
        row.appendChild(frame);
        row.appendChild(this.span);
        var drag = function (event) {
          if (!(event.buttons & 1)) { return; }
          var box = self.map.getBoundingClientRect();
          self.scrollTo(Math.floor((event.clientX - box.left) / box.width * self.tokens.count));
        };
        this.map.addEventListener("mousedown", drag);
        this.map.addEventListener("mousemove", drag);
        this.drawMap();
      }
      this.factWorst();
      this.factMarked();
    },

    fact: function (name) {
      var row = element("div", "tok-fact");
      row.appendChild(element("span", "tok-fact-name", name));
      var value = element("div", "tok-fact-value");
      row.appendChild(value);
      this.facts.appendChild(row);
      return value;
    },

    /* Where the window is: moved on every scroll, so it costs nothing; the map below it is drawn once a colour. */
    drawBox: function () {
      if (!this.map) { return; }
      var range = this.inView(), count = this.tokens.count, last = Math.min(range[1], count - 1);
      this.span.textContent = range[0] + " to " + last + " of " + count.toLocaleString("en-US");
      this.box.hidden = last - range[0] >= count - 1;
      this.box.style.left = 100 * range[0] / count + "%";
      this.box.style.width = Math.max(0.4, 100 * (last - range[0] + 1) / count) + "%";
    },

    drawMap: function () {
      if (!this.map) { return; }
      this.drawBox();
      var tokens = this.tokens, count = tokens.count;
      var width = Math.max(60, Math.min(this.facts.clientWidth - 260, count * 16)), height = 14, scale = window.devicePixelRatio || 1;
      this.map.style.width = width + "px";
      this.map.width = width * scale;
      this.map.height = height * scale;
      var context = this.map.getContext("2d"), style = getComputedStyle(document.documentElement), colours = {};
      context.scale(scale, scale);
      function variable(name) { return colours[name] || (colours[name] = style.getPropertyValue("--rlv-" + name).trim()); }
      var columns = Math.min(count, Math.floor(width));
      for (var c = 0; c < columns; c++) {
        // A column stands for many tokens: the strongest is drawn, so that one bad token in 32,000 is seen.
        var best = null;
        for (var i = Math.floor(c * count / columns), end = Math.max(i + 1, Math.floor((c + 1) * count / columns)); i < end; i++) {
          var g = ground(tokens, this.colour, i);
          if (g && (!best || g.share > best.share || g.odd)) { best = g; }
        }
        var x = c * width / columns, w = columns < 200 ? width / columns - 1 : width / columns + 0.5;
        context.globalAlpha = 1;
        context.fillStyle = variable("surface-2");
        context.fillRect(x, 1, w, height - 2);
        if (!best) { continue; }
        if (best.heat) { context.fillStyle = variable("heat-" + (1 + Math.round(best.share * 7))); } else {
          context.globalAlpha = best.odd ? 1 : 0.15 + 0.85 * best.share;
          context.fillStyle = best.odd ? variable("warn-fill") : best.sign ? variable(best.sign < 0 ? "trainer-lower" : "trainer-higher") : variable("accent");
        }
        context.fillRect(x, 1, w, height - 2);
      }
    },

    factWorst: function () {
      var tokens = this.tokens, self = this, found = [];
      if (!tokens.has("delta")) { return; }
      for (var i = 0; i < tokens.count; i++) { var v = tokens.delta(i); if (typeof v === "number" && Math.abs(v) > 0) { found.push([Math.abs(v), i]); } }
      if (!found.length) { return; }
      found.sort(function (a, b) { return b[0] - a[0] || a[1] - b[1]; });
      var box = this.fact("Largest |\u0394|");
      found.slice(0, 4).forEach(function (pair, place) {
        var button = element("button", "tok-jump", (place === 0 ? "position " : "") + pair[1]);
        button.type = "button";
        button.addEventListener("click", function () { self.move(pair[1], true); });
        if (place) { box.appendChild(document.createTextNode(place === 1 ? ", then " : ", ")); }
        box.appendChild(button);
      });
    },

    factMarked: function () {
      if (!this.marked) { return; }
      var a = this.marked[0], b = Math.min(this.marked[1], this.tokens.count - 1), sum = 0, n = 0, low = Infinity, at = a, self = this;
      for (var i = a; i <= b; i++) {
        var v = this.tokens.delta(i);
        if (typeof v === "number" && isFinite(v)) { sum += v; n++; if (v < low) { low = v; at = i; } }
      }
      var words = (a === b ? "token " + a : "tokens " + a + " to " + b) + (n ? ", mean \u0394 " + signed(sum / n, 3) + ", lowest " + signed(low, 2) + " at " + at : "") + " ";
      var box = this.fact("Marked");
      box.appendChild(document.createTextNode(words));
      var clear = element("button", "tok-jump", "Clear");
      clear.type = "button";
      clear.addEventListener("click", function () { self.mark(null); });
      box.appendChild(clear);
    },

    hover: function (target) {
      var node = target.closest && target.closest("[data-i]");
      if (!node) { this.unhover(); return; }
      if (node === this.hovered) { return; }
      this.hovered = node;
      this.card(node, Number(node.getAttribute("data-i")));
    },
    unhover: function () { if (this.hovered) { this.hovered = null; window.rlvPages.hideCard(); } },

    card: function (node, i) {
      var t = this.tokens, d = t.data, rows = [];
      function add(name, value, className) { if (value !== null && value !== undefined) { rows.push([name, value, className]); } }
      var delta = t.delta(i), update = t.update(i), id = t.at("ids", i);
      if (d.rollout_logprobs) { add("Rollout logprob", number(d.rollout_logprobs[i])); }
      if (t.trainer) { add("Trainer logprob", number(t.trainer[i])); }
      if (delta !== null) { add("Difference", signed(delta), delta < -1 ? "is-lower" : ""); add("Ratio, behaviour", ratioText(Math.exp(delta))); }
      if (d.current_logprobs) { add("Current logprob", number(d.current_logprobs[i])); }
      if (update !== null) { add("Ratio, update", ratioText(Math.exp(update))); }
      if (d.ref_logprobs) { add("Reference logprob", number(d.ref_logprobs[i])); }
      if (d.entropies) { add("Entropy", number(d.entropies[i])); }
      if (t.has("advantage")) { add("Advantage", signed(t.advantage(i))); }
      if (d.policy_versions) { add("Policy version", d.policy_versions[i] === null ? "\u2013" : String(d.policy_versions[i])); }
      else if (this.question.version) { add("Policy version", this.question.version); }
      if (d.response_mask) { add("Response mask", String(d.response_mask[i])); }
      if (d.loss_mask) { add("Loss mask", String(d.loss_mask[i]), d.response_mask && d.loss_mask[i] !== d.response_mask[i] ? "is-lower" : ""); }
      var text = t.text(i).replace(/\n/g, "\u21b5").replace(/\t/g, "\u2192");
      var title = "Position " + i + (id === null ? "" : ", id " + id) + "\n" + text;
      window.rlvPages.showCard(node, title, rows, t.data.derived_texts ? "Text cut from the response, one character a token" : "");
    },

    click: function (event) {
      var node = event.target.closest && event.target.closest("[data-i]");
      if (!node || (!event.shiftKey && String(window.getSelection()))) { return; }
      var i = Number(node.getAttribute("data-i"));
      if (event.shiftKey && this.marked) { this.mark([Math.min(this.marked[0], i), Math.max(this.marked[0], i)]); return; }
      this.cursor = i;
      this.mark([i, i]);
    },

    mark: function (range) {
      this.marked = range;
      this.remember();
      this.again();
    },

    again: function () {
      this.layer = null;
      if (this.show === "cells") { this.drawWindow(); } else if (this.show === "text") { this.drawLines(); }
      this.drawFacts();
    },

    move: function (i, keep) {
      this.cursor = Math.min(this.tokens.count - 1, Math.max(0, i));
      if (keep) { this.marked = [this.cursor, this.cursor]; this.remember(); }
      this.scrollTo(this.cursor);
      this.again();
      var node = this.view.querySelector('[data-i="' + this.cursor + '"]');
      if (node) { this.card(node, this.cursor); }
    },

    key: function (event) {
      if (event.ctrlKey || event.metaKey || event.altKey) { return; }
      var keys = COLOURS.map(function (c) { return c[0]; }), tokens = this.tokens;
      var step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) { this.move(this.cursor + step, false); }
      else if (event.key === "Enter" && this.cursor >= 0) { this.mark(event.shiftKey && this.marked ? [Math.min(this.marked[0], this.cursor), Math.max(this.marked[0], this.cursor)] : [this.cursor, this.cursor]); }
      else if (event.key === "t") {
        var usable = keys.filter(function (c) { return tokens.has(c); });
        this.colour = usable[(usable.indexOf(this.colour) + 1) % usable.length];
        this.remember();
        this.draw();
      } else if (event.key === "m" && tokens.has("mask")) { this.colour = "mask"; this.remember(); this.draw(); }
      else { return; }
      event.preventDefault();
    },

    scrollTo: function (i) {
      if (this.show === "cells") { this.scroll.scrollLeft = i * CELL - this.scroll.clientWidth / 2; }
      else if (this.show === "text") {
        var low = 0, high = this.lines.length - 1;
        while (low < high) { var mid = (low + high + 1) >> 1; if (this.pieces[this.lines[mid]][0] <= i) { low = mid; } else { high = mid - 1; } }
        this.scroll.scrollTop = low * LINE - this.scroll.clientHeight / 2;
      }
      this.soon();
    },

    /* The address is the state, without drawing the page anew. */
    remember: function () {
      var query = new URLSearchParams(window.location.search);
      function put(key, value) { if (value) { query.set(key, value); } else { query.delete(key); } }
      put("color", this.colour);
      put("show", this.show);
      put("tok", this.marked ? (this.marked[0] === this.marked[1] ? String(this.marked[0]) : this.marked.join("-")) : "");
      window.history.replaceState(window.history.state, "", window.location.pathname + "?" + query.toString());
    }
  };

  function mount(question, tries) {
    var host = document.getElementById("trajectory-map");
    if (!host) {
      if ((tries || 0) < 120) { requestAnimationFrame(function () { mount(question, (tries || 0) + 1); }); }
      return;
    }
    var key = question.url;
    host.setAttribute("data-of", key);
    fetch(question.url, { credentials: "same-origin" }).then(function (answer) {
      if (!answer.ok) { throw new Error("the server answered " + answer.status); }
      return answer.json();
    }).then(function (data) {
      // The page may have moved on meanwhile.
      if (host.getAttribute("data-of") !== key || !document.body.contains(host)) { return; }
      var tokens = new Tokens(data, question);
      if (!tokens.count) { host.replaceChildren(element("p", "rlv-note", "The token arrays of this trajectory are empty.")); return; }
      window.rlvTokens.shown = new Map_(host, tokens, question);
    }).catch(function (error) {
      host.replaceChildren(element("p", "rlv-note", "The token arrays could not be read: " + error.message + ". Reload the page to try again."));
    });
  }

  new MutationObserver(function () { var m = window.rlvTokens.shown; if (m && document.body.contains(m.host)) { m.drawMap(); } })
    .observe(document.documentElement, { attributes: true, attributeFilter: ["data-mantine-color-scheme"] });

  window.rlvTokens = { mount: mount, shown: null };
})();
