/* The browser part of frontend/components/svg.py: a closed list of elements and attributes, no markup from strings. */
(function () {
  "use strict";
  var ELEMENTS = ["g", "path", "circle", "rect", "line", "polyline", "text", "tspan", "title"];
  var ATTRIBUTES = [
    "d", "cx", "cy", "r", "x", "y", "x1", "x2", "y1", "y2", "width", "height", "rx", "points", "className", "transform",
    "textAnchor", "opacity", "strokeWidth", "strokeDasharray", "dx", "dy"
  ];

  function draw(shape, key) {
    if (typeof shape === "string") { return shape; }
    if (!Array.isArray(shape) || ELEMENTS.indexOf(shape[0]) < 0) { return null; }
    var given = shape[1] || {};
    var attributes = { key: key };
    Object.keys(given).forEach(function (name) {
      if (ATTRIBUTES.indexOf(name) >= 0) { attributes[name] = given[name]; }
    });
    var inside = shape[2];
    if (Array.isArray(inside)) { inside = inside.map(draw); }
    return React.createElement(shape[0], attributes, inside);
  }

  function Svg(props) {
    return React.createElement("svg", {
      width: props.stretch ? "100%" : props.width,
      height: props.height,
      viewBox: "0 0 " + (props.view || [props.width, props.height]).join(" "),
      preserveAspectRatio: props.stretch ? "none" : undefined,
      className: props.className,
      role: props.label ? "img" : undefined,
      "aria-label": props.label || undefined,
      "aria-hidden": props.label ? undefined : "true",
      focusable: "false"
    }, (props.shapes || []).map(draw));
  }

  window.rlv_components = { Svg: Svg };
})();
