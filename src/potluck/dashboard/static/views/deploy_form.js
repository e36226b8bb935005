// What the deploy form sends, and what it says about a plan. Pure.

/** The fields of the form as they are at first; texts, as inputs have them. */
export const EMPTY_FORM = {
  model: "",
  model_id: "",
  context_tokens: "",
  cache_tokens: "",
  quantization: "none",
  objective: "latency",
  num_streams: "",
  arithmetic: "exact",
  is_mapped: false,
  layout: "",
  tensor_parallel: "",
  num_spares: "",
  rebalance: "auto",
  rebalance_percent: "",
  draft: "",
  tool_format: "",
  num_states: "",
  cache_disk_gib: "",
  target_step_ms: "",
  recovery_wait_seconds: "",
  prefix_cache: true,
  keep_weights: true,
};

/** Quantizations by name; "auto" is sent as null. */
export const QUANTIZATIONS = [
  ["none", "none: as in the files"],
  ["auto", "auto: only if needed to fit"],
  ["q8_0", "q8_0"],
  ["q6_k", "q6_k"],
  ["q4_k", "q4_k"],
  ["iq4_nl", "iq4_nl"],
  ["q4_0", "q4_0"],
  ["q3_k", "q3_k"],
];

export const OBJECTIVES = [
  ["latency", "latency: fastest single stream"],
  ["throughput", "throughput: all streams together"],
  ["memory", "memory: fill units evenly"],
];

export const ARITHMETICS = [
  ["exact", "exact: bit-identical on CPUs"],
  ["fast", "fast: bf16 where CPUs support it"],
];

export const REBALANCES = [
  ["auto", "auto: move to a better plan"],
  ["ask", "ask: only show a better plan"],
  ["never", "never: only after a loss"],
];

const GIB = 2 ** 30;
const TEXTS = ["model_id", "layout", "draft", "tool_format"];
const NUMBERS = [
  "context_tokens",
  "cache_tokens",
  "num_streams",
  "tensor_parallel",
  "num_spares",
  "num_states",
  "target_step_ms",
  "recovery_wait_seconds",
];

/** The body of POST /cluster/plan and /cluster/deployments. Without a field its default applies. */
export function bodyOf(form) {
  const body = {
    model: form.model.trim(),
    quantization: form.quantization === "auto" ? null : form.quantization,
    objective: form.objective,
    arithmetic: form.arithmetic,
    is_mapped: form.is_mapped,
    rebalance: form.rebalance,
    prefix_cache: form.prefix_cache,
    keep_weights: form.keep_weights,
  };
  for (const name of TEXTS) if (form[name].trim()) body[name] = form[name].trim();
  for (const name of NUMBERS) if (form[name] !== "") body[name] = Number(form[name]);
  if (form.rebalance_percent !== "") {
    body.rebalance_threshold = Number(form.rebalance_percent) / 100;
  }
  if (form.cache_disk_gib !== "") {
    body.cache_disk_bytes = Math.round(Number(form.cache_disk_gib) * GIB);
  }
  return body;
}

/** Memory that a plan takes, and of what it may use on each unit. */
export function planMemory(plan) {
  const fullest = plan.stages
    .filter((stage) => stage.usable_bytes > 0)
    .map((stage) => stage.num_bytes / stage.usable_bytes);
  return {
    totalBytes: plan.stages.reduce((total, stage) => total + stage.num_bytes, 0),
    fullest: fullest.length ? Math.max(...fullest) : null,
  };
}

/** Other plans that were looked at, in a sentence each. */
export function alternatives(plan, name, rate) {
  const told = [];
  const fewer = plan.one_unit_fewer;
  if (fewer) {
    const gone = `${name(fewer.node_id)} ${fewer.unit_id}`;
    told.push(`Without ${gone}: ${rate(fewer.tokens_per_second)} for one stream.`);
  }
  const more = plan.one_unit_more;
  if (more) {
    const kind = `${name(more.node_id)} ${more.unit_id}`;
    told.push(`With one more unit like ${kind}: ${rate(more.tokens_per_second)} for one stream.`);
  }
  if (plan.side_by_side) {
    const number = plan.side_by_side.pipelines.length;
    const total = rate(plan.side_by_side.total_tokens_per_second);
    told.push(`As ${number} deployments side by side: ${total} for all streams together.`);
  }
  const other = plan.in_groups ?? plan.without_groups;
  if (other) {
    const how = plan.in_groups ? "With groups of units that share stages" : "Without groups";
    told.push(`${how}: ${rate(1 / other.token_seconds)} for one stream.`);
  }
  return told;
}
