/**
 * Elements made in one expression. Text is always text: nothing here parses HTML.
 * @module
 */

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'text') element.textContent = value;
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** An HTML element. `onclick` and its like listen, `text` is its text, anything else is an attribute. */
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element, in the same way. */
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Set a text only where it changed: an unchanged page costs no layout. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an attribute only where it changed; null takes it away. */
export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Keep as many children as there are items: makes, drops and updates, never rebuilds. */
export function keep(parent, items, make, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) parent.append(make());
  items.forEach((item, at) => update(parent.children[at], item, at));
}
