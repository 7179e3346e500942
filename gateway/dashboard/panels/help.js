/**
 * The list of shortcuts.
 * @module
 */

import { h } from '../lib/dom.js';

export const SHORTCUTS = [
  ['?', 'this list'],
  ['1 … 9', 'the views, in the order of their tabs'],
  ['o', 'go to the overlay tree'],
  ['/', 'go to the filter of the console'],
  ['p', 'pause or resume the console'],
  ['f', 'follow the newest entries, or stay'],
  ['t', 'theme: as the system, light, dark'],
  ['↑ ↓ ← →', 'in the tree: move, unfold, fold; in a list: move'],
  ['Enter', 'choose a broker; open an entry'],
  ['Esc', 'close what is open; choose no broker'],
  ['Ctrl Enter', 'in the payload of a call: call'],
];

/** @param {HTMLDialogElement} dialog */
export function fillHelp(dialog) {
  dialog.append(
    h('h2', { id: 'help-title', text: 'Shortcuts' }),
    h('dl', {}, SHORTCUTS.map(([key, text]) => h('div', {}, h('dt', {}, h('kbd', { text: key })), h('dd', { text })))),
    h('form', { method: 'dialog', class: 'actions' }, h('span', { class: 'spring' }),
      h('button', { class: 'primary', autofocus: true }, 'Close')),
  );
  dialog.addEventListener('click', (event) => {
    if (event.target === dialog) dialog.close();
  });
}
