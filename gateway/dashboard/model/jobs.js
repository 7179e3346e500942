/**
 * Jobs of an NFP broker, put together from its list (`nfp.jobs.list`) and from events (`nfp.job.UUID.KIND`).
 * @module
 */

const KEPT = 200;
const OVER = new Set(['done', 'failed', 'cancelled', 'expired']);

/**
 * @typedef {object} Job
 * @property {string} uuid
 * @property {string} service
 * @property {string} task
 * @property {string} state      queued, running, waiting (for input), done, failed, cancelled or expired
 * @property {number} since      when it came, ms
 * @property {string} message    what was said last; of a job that is over, its error or result in short
 * @property {string} given      its arguments, in short
 * @property {number} took       seconds from its submission to its end, NaN while nobody said
 * @property {Map<string, {over: boolean, ended: string, share: number}>} parts  by worker; `ended` is done, failed, expired
 *   or cancelled, "" before; `share` is what of it is done
 */

/** Arguments as they would stand in a call. @param {any} said @returns {string} */
export function givenOf(said) {
  if (!said || typeof said === 'string') return said ?? '';
  if (!Array.isArray(said.args) || Array.isArray(said.kwargs) || typeof (said.kwargs ?? 0) !== 'object') { // anybody may submit anything
    return JSON.stringify(said);
  }
  const named = Object.entries(said.kwargs).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  return [...said.args.map((value) => JSON.stringify(value)), ...named].join(', ');
}

/** How far a worker says it is: `job.progress("text", done=3, total=10)`, or `progress=0.3`. */
export function shareOf(extras) {
  const { done, total, progress } = extras ?? {};
  const share = Number.isFinite(done) && total > 0 ? done / total : progress;
  return Number.isFinite(share) ? Math.min(1, Math.max(0, share)) : NaN;
}

/** What of a job is done, 0 to 1; NaN while nobody can say. @param {Job} job */
export function shareDone(job) {
  if (OVER.has(job.state)) return 1;
  const parts = [...job.parts.values()];
  if (parts.every(({ over, share }) => !over && !Number.isFinite(share))) return NaN;
  return parts.reduce((sum, { over, share }) => sum + (over ? 1 : share || 0), 0) / parts.length;
}

/** Whether nothing more comes. @param {Job} job */
export const isOver = (job) => OVER.has(job.state);

export class Jobs {
  #jobs = new Map();

  /** Newest first. @returns {Job[]} */
  get list() {
    return [...this.#jobs.values()].sort((one, other) => other.since - one.since);
  }

  /** Forget all of them. */
  clear() {
    this.#jobs.clear();
  }

  /** What the broker's list says; what events said of how far a job is stays. @param {object[]} rows */
  listed(rows) {
    const now = Date.now();
    const known = new Set(rows.map(({ uuid }) => uuid));
    for (const uuid of this.#jobs.keys()) if (!known.has(uuid)) this.#jobs.delete(uuid);
    for (const row of rows) {
      const job = this.#job(row.uuid, row.service, row.task, now - row.age_s * 1000);
      for (const part of row.parts) {
        const name = part.worker || part.name;
        if (name) this.#part(job, name, part.state === 'final', part.ended);
      }
      const started = row.parts.some(({ state }) => state !== 'waiting');
      job.given = givenOf(row.arguments).slice(0, 300);
      job.took = row.took_s ?? NaN;
      if (row.error || row.result) job.message = row.error || row.result;
      job.state = row.state !== 'open' ? row.state : row.asked.length ? 'waiting' : started ? 'running' : 'queued';
    }
  }

  /**
   * An event.
   * @param {object} said  its payload
   * @param {boolean} [listed]  only of a job that is in the list
   */
  happened(said, listed = false) {
    if (listed && !this.#jobs.has(said.uuid)) return;
    const job = this.#job(said.uuid, said.service, said.task, (said.time ?? Date.now() / 1000) * 1000);
    const spoken = said.event ?? {};
    if (isOver(job)) return;
    if (spoken.message) job.message = spoken.message;
    if (said.worker) {
      const part = this.#part(job, said.worker, said.kind === 'finished', said.state);
      const share = shareOf(spoken.extras);
      if (Number.isFinite(share)) part.share = share;
    }
    const state = {
      queued: 'queued', returned: 'queued', dispatched: 'running', accepted: 'running', input_request: 'waiting',
      input_response: 'running', cancelled: said.state, expired: said.state, closed: said.state,
    }[said.kind];
    if (said.kind === 'returned') job.parts.delete(said.worker);
    if (state) job.state = state;
  }

  #job(uuid, service, task, since) {
    let job = this.#jobs.get(uuid);
    if (!job) {
      job = { uuid, id: uuid, service, task, since, state: 'queued', message: '', given: '', took: NaN, parts: new Map() };
      this.#jobs.set(uuid, job);
      if (this.#jobs.size > KEPT) this.#jobs.delete(this.#jobs.keys().next().value);
    }
    return job;
  }

  #part(job, worker, over, ended) {
    const part = job.parts.get(worker) ?? { over: false, ended: '', share: NaN };
    part.over ||= over;
    part.ended ||= ended ?? '';
    job.parts.set(worker, part);
    return part;
  }
}
