/**
 * The history as a file: `headgate pipeline report` puts this program, what it imports and the answers into one page.
 * @module
 */

import { Kept } from './model/kept.js';
import { History } from './panels/history.js';

const history = new History(new Kept(JSON.parse(document.getElementById('answers').textContent)));
document.getElementById('workspace').append(history.element);
document.getElementById('zone').textContent = `times of this browser, ${Intl.DateTimeFormat().resolvedOptions().timeZone}`;
history.watch(true);
