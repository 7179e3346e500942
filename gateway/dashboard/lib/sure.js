/**
 * A button that asks before it acts.
 * @module
 */

import { h } from './dom.js';

const SURE_MS = 3000;

/**
 * The first press asks, a second one within three seconds does it.
 * @param {string} name  what stands on it
 * @param {{label: string, title: string}} told  what it does, for whoever cannot see where it stands, and what it needs
 * @param {() => void} act
 */
export function sureButton(name, { label, title }, act) {
  let timer;
  const button = h('button', { type: 'button', class: 'small', 'aria-label': label, title, text: name, onclick: () => {
    clearTimeout(timer);
    const asked = button.dataset.sure === 'yes';
    button.dataset.sure = asked ? '' : 'yes';
    button.textContent = asked ? name : 'Sure?';
    if (asked) act();
    else timer = setTimeout(() => { button.dataset.sure = ''; button.textContent = name; }, SURE_MS);
  } });
  return button;
}
