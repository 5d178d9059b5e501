/** What a reader of the page stumbles over: text with too little contrast (WCAG AA), text that is out of sight, overlaps. */
(() => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  /** Red, green, blue and alpha, each 0..1. */
  const rgba = (colour) => {
    if (colours.has(colour)) return colours.get(colour);
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    const parts = [...paint.getImageData(0, 0, 1, 1).data].map((part) => part / 255);
    colours.set(colour, parts);
    return parts;
  };
  const colours = new Map();
  const over = (above, below, alpha) => below.map((part, index) => above[index] * alpha + part * (1 - alpha));
  const light = (colour) => {
    const [x, y, z] = colour.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ancestors = (element) => (element ? [element, ...ancestors(element.parentElement)] : []);
  /** What the ancestors of an element, and itself, make of its place: colour behind it, opacity, whether it floats. */
  const place = (element) => {
    if (!element) return { below: [1, 1, 1], opacity: 1, floats: false };
    if (places.has(element)) return places.get(element);
    const { below, opacity, floats } = place(element.parentElement);
    const style = getComputedStyle(element);
    const [r, g, b, alpha] = rgba(style.backgroundColor);
    const found = {
      below: over([r, g, b], below, alpha),
      opacity: opacity * style.opacity,
      floats: floats || ["fixed", "sticky", "absolute"].includes(style.position),
    };
    places.set(element, found);
    return found;
  };
  const places = new Map();
  const contrast = (element, colour) => {
    const { below, opacity } = place(element);
    const [r, g, b, alpha] = rgba(colour);
    const [one, two] = [light(over([r, g, b], below, alpha * opacity)), light(below)];
    return (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
  };
  /** The part of a box that the scrolled places around it show. */
  const shown = (box, element) => {
    let { left, top, right, bottom } = box;
    for (const each of ancestors(element.parentElement)) {
      if (getComputedStyle(each).overflowX === "visible" || each === document.documentElement) continue;
      const outer = each.getBoundingClientRect();
      [left, top] = [Math.max(left, outer.left), Math.max(top, outer.top)];
      [right, bottom] = [Math.min(right, outer.right), Math.min(bottom, outer.bottom)];
    }
    return { left, top, right, bottom };
  };
  const told = [];
  const boxes = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (!element.checkVisibility({ visibilityProperty: true }) || element.closest(".unseen, .flash, .skip, option, svg"))
      continue;
    const style = getComputedStyle(element);
    const texts = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
    const isField = element.matches("textarea, select, input:not([type=range], [type=radio], [type=checkbox])");
    if (!texts.length && !isField) continue;
    const name = element.id || (isField ? element.value : element.textContent).trim().slice(0, 30);
    const empty = isField && !element.value;
    const ratio = contrast(element, empty ? getComputedStyle(element, "::placeholder").color : style.color);
    if (ratio < 4.5 && !element.closest(":disabled")) told.push(`${name}: contrast ${ratio.toFixed(2)}`);
    if (place(element).floats) continue; // made to lie above others
    const lines = isField ? [element.getBoundingClientRect()] : texts.flatMap((node) => {
      const range = document.createRange();
      range.selectNodeContents(node);
      return [...range.getClientRects()];
    });
    for (const line of lines) {
      const box = shown(line, element);
      if (box.right - box.left < 2 || box.bottom - box.top < 2) continue;
      if (box.right > document.documentElement.clientWidth + 1 || box.left < -1) told.push(`${name}: beyond the page`);
      boxes.push({ ...box, element, name });
    }
  }
  for (const [index, one] of boxes.entries())
    for (const two of boxes.slice(index + 1)) {
      if (one.element === two.element) continue;
      const wide = Math.min(one.right, two.right) - Math.max(one.left, two.left);
      const high = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
      if (wide > 2 && high > 5) told.push(`${one.name} lies on ${two.name} (${wide.toFixed()} x ${high.toFixed()})`);
    }
  const wide = Math.max(document.documentElement.scrollWidth, document.body.scrollWidth);
  if (wide > document.documentElement.clientWidth) told.push(`the page is ${wide} px wide`);
  return [...new Set(told)];
})();
