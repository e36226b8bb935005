// The figures of the Series view: the document of /cluster/series with the samples that came after
// it, as columns for charts, and what they amount to. Pure.

import { formatMilliseconds, formatNumber, formatPercent, formatSeconds } from "../format.js";

/** The ranges that can be chosen, in seconds. */
export const RANGES = [
  [300, "5 min"],
  [900, "15 min"],
  [3600, "1 h"],
];

/** The charts: which fields of a sample they show, and how values are written. */
export const CHARTS = [
  {
    key: "speed",
    title: "Tokens per second",
    fields: [["tokens_per_second", "all requests"]],
    format: formatNumber,
  },
  {
    key: "first",
    title: "Time to first token",
    fields: [["first_token_seconds", "mean of each second"]],
    format: formatSeconds,
    isSparse: true,
  },
  {
    key: "queue",
    title: "Requests",
    fields: [
      ["num_running", "running"],
      ["num_waiting", "waiting"],
    ],
    format: formatNumber,
    isStepped: true,
  },
  {
    key: "hits",
    title: "Prompts with a cached prefix",
    fields: [["cache_hit_share", "share of prompts"]],
    format: formatPercent,
    isSparse: true,
    isShare: true,
  },
  {
    key: "drafts",
    title: "Draft acceptance",
    fields: [["draft_acceptance", "share of drafted tokens"]],
    format: formatPercent,
    isShare: true,
  },
  {
    key: "stages",
    title: "Time of a step, by stage",
    stages: "stage_seconds",
    format: formatMilliseconds,
  },
  {
    key: "busy",
    title: "Utilization, by stage",
    stages: "stage_busy",
    format: formatPercent,
    isShare: true,
  },
  {
    key: "cache",
    title: "Cache in use",
    fields: [["cache_used_share", "share of the cache"]],
    format: formatPercent,
    isShare: true,
  },
];

/** The models that a series and later samples know, in order of appearance. */
export function modelIds(series, samples, deployed) {
  const found = new Set(deployed);
  for (const modelId of Object.keys(series?.models ?? {})) found.add(modelId);
  for (const modelId of Object.keys(samples.at(-1)?.models ?? {})) found.add(modelId);
  return [...found];
}

/**
 * One column of times, and a column of values for each line: `{times, lines: [{label, values}]}`.
 * Only the last `seconds` before the newest time are kept; values that are not known are null.
 */
export function columnsOf(chart, modelId, series, samples, seconds) {
  const old = series?.models?.[modelId] ?? {};
  const oldTimes = series?.times ?? [];
  const end = samples.at(-1)?.time ?? oldTimes.at(-1) ?? 0;
  const lastOld = oldTimes.at(-1) ?? -Infinity;
  const news = samples.filter((sample) => sample.time > lastOld && sample.time > end - seconds);
  const start = firstAfter(oldTimes, end - seconds);
  const times = [...oldTimes.slice(start), ...news.map((sample) => sample.time)];
  const join = (oldValues, newValue) => {
    const kept = oldTimes.slice(start).map((_, index) => oldValues?.[start + index] ?? null);
    return [...kept, ...news.map((sample) => newValue(sample.models[modelId]) ?? null)];
  };
  if (!chart.stages) {
    const lines = chart.fields.map(([field, label]) => ({
      label,
      values: join(old[field], (sample) => sample?.[field]),
    }));
    return { times, lines };
  }
  const field = chart.stages;
  const numStages = Math.max(
    old[field]?.length ?? 0,
    ...news.map((sample) => sample.models[modelId]?.[field]?.length ?? 0),
  );
  const lines = Array.from({ length: numStages }, (_, stage) => ({
    label: `stage ${stage}`,
    values: join(old[field]?.[stage], (sample) => sample?.[field]?.[stage]),
  }));
  return { times, lines };
}

function firstAfter(times, start) {
  const index = times.findIndex((time) => time > start);
  return index < 0 ? times.length : index;
}

/** The last known value, and the least, mean and greatest; null of a line without values. */
export function summaryOf(values) {
  let last = null;
  let least = Infinity;
  let greatest = -Infinity;
  let total = 0;
  let number = 0;
  for (const value of values) {
    if (value === null) continue;
    last = value;
    least = Math.min(least, value);
    greatest = Math.max(greatest, value);
    total += value;
    number += 1;
  }
  return number === 0 ? null : { last, least, mean: total / number, greatest };
}
