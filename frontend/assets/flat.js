/* The browser part of frontend/components/flat.py: a closed list of elements, links within this site, text as text. */
(function () {
  "use strict";
  var ELEMENTS = [
    "a", "article", "aside", "b", "bdi", "code", "dd", "div", "dl", "dt", "em", "footer", "h1", "h2", "h3", "header", "i", "li", "main",
    "nav", "ol", "p", "pre", "section", "small", "span", "strong", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul"
  ];
  var ATTRIBUTES = /^(className|style|title|role|tabIndex|href|id|colSpan|dir|hidden|lang|data-[a-z-]+|aria-[a-z]+)$/;

  function draw(node, key) {
    if (node === null || node === undefined) { return null; }
    if (typeof node === "string") { return node; }
    if (!Array.isArray(node)) { return null; }
    var name = node[0];
    if (name === "Svg" && node.length === 2 && node[1] && !Array.isArray(node[1])) {
      return React.createElement(window.rlv_components.Svg, Object.assign({ key: key }, node[1]));
    }
    if (typeof name === "string" && node.length === 3 && node[1] && typeof node[1] === "object" && !Array.isArray(node[1])) {
      if (ELEMENTS.indexOf(name) < 0) { return null; }
      var attributes = { key: key };
      Object.keys(node[1]).forEach(function (attribute) {
        var value = node[1][attribute];
        if (!ATTRIBUTES.test(attribute)) { return; }
        if (attribute === "href" && !/^([?#]|\/(?!\/))/.test(value)) { return; }
        attributes[attribute] = value;
      });
      return React.createElement(name, attributes, draw(node[2]));
    }
    return node.map(draw);
  }

  window.rlv_flat = { Flat: function (props) { return React.createElement("div", { id: props.id, className: "rlv-flat" }, draw(props.tree)); } };
})();
