// The Models view: what is deployed, and what is being loaded and from where.

import { html, useEffect, useRef, useState } from "../lib.js";
import { request } from "../api.js";
import { access, cluster } from "../state.js";
import {
  count,
  formatBytes,
  formatNumber,
  formatPercent,
  formatRate,
  formatSeconds,
} from "../format.js";
import { nameOf } from "./cluster_model.js";
import { DeployForm } from "./deploy.js";
import { namesOfNodes } from "./names.js";
import { Fact, Failure, ModelState } from "./parts.js";

export function ModelsView() {
  const document = cluster.value;
  const canAdminister = access.value?.can_administer ?? false;
  if (!document) {
    return html`<section class="view"><h1>Models</h1><p role="status">Loading …</p></section>`;
  }
  const names = namesOfNodes.value;
  return html`<section class="view models-view" aria-labelledby="models-title">
    <h1 id="models-title">Models</h1>
    ${!canAdminister && html`<${NoRight} />`}
    ${document.deployments.length === 0 && html`<p>No model is deployed.</p>`}
    <ul class="deployments">
      ${document.deployments.map(
        (deployment) =>
          html`<${Deployment}
            key=${deployment.deployment}
            deployment=${deployment}
            names=${names}
            canAdminister=${canAdminister}
          />`,
      )}
    </ul>
    <${DeployForm} document=${document} names=${names} canAdminister=${canAdminister} />
  </section>`;
}

function NoRight() {
  return html`<div class="notice" id="no-right">
    <p>
      <strong>You can use models here, but not deploy or remove them.</strong> To do so, run
      ${" "}<code>potluck dashboard</code> on this node as the user that runs its agent, and open
      the address that it prints; or enter an API key with the role <code>admin</code>.
    </p>
  </div>`;
}

function Deployment({ deployment, names, canAdminister }) {
  const { state, measured, prediction } = deployment;
  const isLoading = state === "loading";
  const nodes = [...new Set(deployment.stages.map((stage) => stage.node_id))];
  const speed = measured.tokens_per_second ?? prediction?.tokens_per_second ?? null;
  return html`<li class="card">
    <div class="deployment-head">
      <h2>${deployment.model_id}</h2>
      <${ModelState} state=${state} />
      <${Removal}
        modelId=${deployment.model_id}
        isLoading=${isLoading}
        canAdminister=${canAdminister}
      />
    </div>
    ${deployment.reason &&
    !["ready", deployment.reason].includes(state) &&
    html`<p>${deployment.reason}</p>`}
    <dl class="facts">
      <${Fact} name="Files">${deployment.model}<//>
      <${Fact} name="Context">${formatNumber(deployment.context_tokens)} tokens<//>
      <${Fact} name="Cache">${formatNumber(deployment.cache_tokens)} tokens<//>
      <${Fact} name="Quantization">${deployment.quantization}<//>
      <${Fact} name="Placement">
        ${nodes.length
          ? `${count(deployment.stages.length, "stage")} on ${nodes
              .map((nodeId) => nameOf(names, nodeId))
              .join(", ")}`
          : "not placed yet"}
      <//>
      ${speed !== null &&
      html`<${Fact} name="Speed">
        ${formatNumber(speed)} tokens/s for one stream,${" "}
        ${measured.tokens_per_second === null ? "predicted" : "measured"}
      <//>`}
      ${deployment.num_recoveries > 0 &&
      html`<${Fact} name="Recoveries">
        ${deployment.num_recoveries}${deployment.recovery_seconds === null
          ? ""
          : `, the last in ${formatSeconds(deployment.recovery_seconds)}`}
      <//>`}
    </dl>
    ${deployment.remarks.map((remark) => html`<p class="note">${remark}</p>`)}
    ${deployment.arithmetic_note && html`<p class="note">${deployment.arithmetic_note}</p>`}
    ${isLoading && html`<${Loading} deployment=${deployment} names=${names} />`}
  </li>`;
}

function Loading({ deployment, names }) {
  const { done_bytes: done, total_bytes: total, stages, transfers } = deployment;
  return html`<div class="loading">
    <${Progress} label="Weights loaded" done=${done} total=${total} />
    ${stages.length > 0 &&
    html`<h3>Stages</h3>
      <ul class="transfers">
        ${stages.map((stage) => html`<li><${StageProgress} stage=${stage} names=${names} /></li>`)}
      </ul>`}
    ${transfers.length > 0 &&
    html`<h3>Files by node</h3>
      <ul class="transfers">
        ${transfers.map(
          (transfer) =>
            html`<li>
              <${Progress}
                label=${nameOf(names, transfer.node_id)}
                done=${transfer.done_bytes}
                total=${transfer.total_bytes}
              />
              <p class="note">${transferText(transfer, names)}</p>
            </li>`,
        )}
      </ul>`}
  </div>`;
}

function StageProgress({ stage, names }) {
  const layers = count(stage.end_layer - stage.start_layer, "layer");
  const label = `${nameOf(names, stage.node_id)} ${stage.unit_id}, ${layers}`;
  if (stage.progress) {
    const { doing, done_bytes: done, total_bytes: total } = stage.progress;
    return html`<${Progress} label=${`${label}, ${doing}`} done=${done} total=${total} />`;
  }
  const isLoaded = stage.load_seconds !== null;
  return html`<span class="note">
    ${label}: ${isLoaded ? `loaded in ${formatSeconds(stage.load_seconds)}` : "waiting"}
  </span>`;
}

function Progress({ label, done, total }) {
  const text =
    total > 0
      ? `${formatBytes(done)} of ${formatBytes(total)} (${formatPercent(done / total)})`
      : "size not known yet";
  return html`<label class="progress">
    <span>${label}: ${text}</span>
    <progress max=${total || 1} value=${total > 0 ? done : null}></progress>
  </label>`;
}

function transferText(transfer, names) {
  const sources = Object.entries(transfer.by_source)
    .filter(([, numBytes]) => numBytes > 0)
    .sort((one, other) => other[1] - one[1])
    .map(([source, numBytes]) => `${formatBytes(numBytes)} from ${sourceName(source, names)}`);
  const parts = [sources.join(", ")];
  if (transfer.done_bytes < transfer.total_bytes) {
    parts.push(formatRate(transfer.bytes_per_second, "B/s"));
    if (transfer.seconds_left !== null) parts.push(`${formatSeconds(transfer.seconds_left)} left`);
  } else {
    parts.push("complete");
  }
  return parts.filter(Boolean).join("; ");
}

function sourceName(source, names) {
  if (source === "disk") return "its disk";
  return source === "hub" ? "the hub" : nameOf(names, source);
}

/** Undeploy, or cancel: asks first. */
function Removal({ modelId, isLoading, canAdminister }) {
  const [isAsking, setAsking] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const dialog = useRef(null);
  useEffect(() => {
    if (isAsking) dialog.current?.showModal();
  }, [isAsking]);
  const remove = async () => {
    setBusy(true);
    setError(null);
    try {
      await request(`cluster/deployments/${encodeURIComponent(modelId)}`, { method: "DELETE" });
      dialog.current?.close();
    } catch (failure) {
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  const action = isLoading ? "Cancel loading" : "Undeploy";
  return html`<button
      type="button"
      class="button danger"
      disabled=${!canAdminister}
      aria-describedby=${canAdminister ? null : "no-right"}
      aria-label=${`${action} ${modelId}`}
      onClick=${() => setAsking(true)}
    >
      ${action}
    </button>
    ${isAsking &&
    html`<dialog ref=${dialog} aria-label=${action} onClose=${() => setAsking(false)}>
      <h2>${action}?</h2>
      <p>
        ${isLoading
          ? html`<b>${modelId}</b> will not be deployed. Complete files are kept.`
          : html`<b>${modelId}</b> will be removed from all nodes, and requests in progress will
              fail.`}
      </p>
      ${error && html`<${Failure} title=${isLoading ? "Loading was not canceled." : "The model was not undeployed."} error=${error} />`}
      <p class="row">
        <button type="button" class="button danger" disabled=${isBusy} onClick=${remove}>
          ${isBusy ? "Removing …" : action}
        </button>
        <button type="button" class="button" onClick=${() => dialog.current?.close()}>
          ${isLoading ? "Keep loading" : "Keep it"}
        </button>
      </p>
    </dialog>`}`;
}
