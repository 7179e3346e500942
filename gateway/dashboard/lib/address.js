/**
 * What the address of the page says: the view, and what is chosen in it, so that a link can be given to somebody else.
 *
 *     #services?rank=2&filter=calc&range=3600
 * @module
 */

/** @returns {{view: string, chosen: URLSearchParams}} */
export function read() {
  const [view, query] = location.hash.slice(1).split('?', 2);
  return { view, chosen: new URLSearchParams(query ?? '') };
}

/** Say it, without another entry in the history of the browser; what is empty is left out. @param {Record<string, *>} chosen */
export function write(view, chosen) {
  const said = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value !== null && value !== undefined && value !== ''));
  const query = said.toString();
  history.replaceState(null, '', `#${view}${query ? `?${query}` : ''}`);
}
