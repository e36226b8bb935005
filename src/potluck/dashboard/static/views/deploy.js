// The form that deploys a model, and the plan that it shows before anything is loaded.

import { html, useEffect, useRef, useState } from "../lib.js";
import { request } from "../api.js";
import { count, formatBytes, formatNumber, formatPercent, formatSeconds } from "../format.js";
import { linksOf, nameOf, pathOf } from "./cluster_model.js";
import {
  alternatives,
  ARITHMETICS,
  bodyOf,
  EMPTY_FORM,
  OBJECTIVES,
  planMemory,
  QUANTIZATIONS,
  REBALANCES,
} from "./deploy_form.js";
import { Fact, Failure, Scrolling } from "./parts.js";
import { TokenPath } from "./path.js";

export function DeployForm({ document, names, canAdminister }) {
  const [form, setForm] = useState(EMPTY_FORM);
  const [plan, setPlan] = useState(null); // of the form as it is now
  const [error, setError] = useState(null); // {title, error}
  const [doing, setDoing] = useState(null); // "plan", "deploy" or null
  const [told, setTold] = useState("");
  const asked = useRef(0);
  const change = (field) => (event) => {
    const input = event.currentTarget;
    setForm({ ...form, [field]: input.type === "checkbox" ? input.checked : input.value });
    asked.current += 1; // a plan that is still on its way is of another form
    setPlan(null);
    setError(null);
    setTold("");
    setDoing(null);
  };
  const send = async (what, path, title, onAnswer) => {
    const number = (asked.current += 1);
    setDoing(what);
    setError(null);
    try {
      const answer = await request(path, { method: "POST", body: bodyOf(form) });
      if (number === asked.current) onAnswer(answer);
    } catch (failure) {
      if (number === asked.current) setError({ title, error: failure });
    } finally {
      if (number === asked.current) setDoing(null);
    }
  };
  const showPlan = (event) => {
    event.preventDefault();
    setPlan(null);
    setTold("");
    send("plan", "cluster/plan", "Planning failed.", setPlan);
  };
  const deploy = () =>
    send("deploy", "cluster/deployments", "Deployment failed.", (deployment) => {
      setTold(`${deployment.model_id} is being deployed.`);
      setPlan(null);
      setForm(EMPTY_FORM);
    });
  const field = { form, change };
  const drafters = ["ngram", "off", ...document.deployments.map((each) => each.model_id)];
  return html`<section class="card" aria-labelledby="deploy-title">
    <h2 id="deploy-title">Deploy a model</h2>
    <form onSubmit=${showPlan}>
      <fieldset
        class="plain"
        disabled=${!canAdminister || doing === "deploy"}
        aria-describedby=${canAdminister ? null : "no-right"}
      >
        <legend class="visually-hidden">What to deploy</legend>
        <div class="form-grid">
          <div class="field wide">
            <label for="deploy-model">Model</label>
            <input
              id="deploy-model"
              type="text"
              required
              autocomplete="off"
              autocapitalize="off"
              spellcheck=${false}
              aria-describedby="model-hint"
              value=${form.model}
              onInput=${change("model")}
            />
            <small id="model-hint" class="note">
              A directory or .gguf file on the nodes, a hub id (org/name, org/name:file.gguf), or
              ${" "}<code>demo</code>.
            </small>
          </div>
          <${TextField}
            ...${field}
            name="model_id"
            label="Name for clients"
            hint="from the files' name"
          />
          <${NumberField} ...${field} name="context_tokens" label="Context (tokens)" min="2" />
          <${NumberField} ...${field} name="cache_tokens" label="Cache (tokens)" min="2" />
          <${SelectField}
            ...${field}
            name="quantization"
            label="Quantization"
            options=${QUANTIZATIONS}
          />
          <${SelectField} ...${field} name="objective" label="Optimize for" options=${OBJECTIVES} />
          <${NumberField}
            ...${field}
            name="num_streams"
            label="Concurrent streams"
            hint="8"
            min="1"
          />
          <${SelectField} ...${field} name="arithmetic" label="Arithmetic" options=${ARITHMETICS} />
          <${CheckField} ...${field} name="is_mapped">
            Map the weights from a file instead of keeping them in memory
          <//>
        </div>
        <details class="more" onInvalidCapture=${(event) => {
          event.currentTarget.open = true; // a field that is hidden cannot say what is wrong
        }}>
          <summary>More settings</summary>
          <div class="form-grid">
            <${TextField}
              ...${field}
              name="layout"
              label="Layout"
              hint="the best plan; or desktop=24,board=8"
              isWide
            />
            <${NumberField}
              ...${field}
              name="tensor_parallel"
              label="Units that share a stage"
              hint="auto; 1 turns sharing off"
              min="1"
            />
            <${NumberField}
              ...${field}
              name="num_spares"
              label="Spares of each stage"
              hint="0"
              min="0"
            />
            <${SelectField} ...${field} name="rebalance" label="Rebalance" options=${REBALANCES} />
            <${NumberField}
              ...${field}
              name="rebalance_percent"
              label="Minimum gain to rebalance (%)"
              hint="20"
              min="1"
            />
            <${TextField}
              ...${field}
              name="draft"
              label="Drafts (speculative decoding)"
              hint="ngram"
              options=${drafters}
            />
            <${TextField}
              ...${field}
              name="tool_format"
              label="Format of tool calls"
              hint="from the chat template"
            />
            <${NumberField} ...${field} name="num_states" label="State slots" min="1" />
            <${NumberField}
              ...${field}
              name="cache_disk_gib"
              label="Cache on disk (GiB per stage)"
              hint="none"
              min="0"
              step="any"
            />
            <${NumberField}
              ...${field}
              name="target_step_ms"
              label="Target time per token (ms)"
              hint="200"
              min="1"
              step="any"
            />
            <${NumberField}
              ...${field}
              name="recovery_wait_seconds"
              label="Wait for lost stages (s)"
              hint="60"
              min="0"
              step="any"
            />
            <${CheckField} ...${field} name="prefix_cache">Reuse equal prefixes of prompts<//>
            <${CheckField} ...${field} name="keep_weights">
              Keep files fetched from other nodes or the hub
            <//>
          </div>
        </details>
        <button type="submit" class="button primary" disabled=${doing !== null}>
          ${doing === "plan" ? "Planning …" : "Show the plan"}
        </button>
        <span class="note"> Nothing is loaded before you have seen the plan.</span>
      </fieldset>
    </form>
    <div role="status">${told && html`<p class="notice good">${told}</p>`}</div>
    ${error && html`<${Failure} ...${error} />`}
    ${plan &&
    html`<${Plan}
      plan=${plan}
      document=${document}
      names=${names}
      isDeploying=${doing === "deploy"}
      onDeploy=${deploy}
    />`}
  </section>`;
}

/** `options`, if given, are proposed; any other text can be entered as well. */
function TextField({ form, change, name, label, hint, options, isWide }) {
  return html`<label class=${`field ${isWide ? "wide" : ""}`}>
    <span>${label}</span>
    <input
      type="text"
      autocomplete="off"
      autocapitalize="off"
      spellcheck=${false}
      list=${options ? `deploy-${name}-options` : null}
      placeholder=${hint}
      value=${form[name]}
      onInput=${change(name)}
    />
    ${options &&
    html`<datalist id=${`deploy-${name}-options`}>
      ${options.map((each) => html`<option value=${each}></option>`)}
    </datalist>`}
  </label>`;
}

function NumberField({ form, change, name, label, min, hint = "default", step = "1" }) {
  return html`<label class="field">
    <span>${label}</span>
    <input
      type="number"
      inputmode=${step === "1" ? "numeric" : "decimal"}
      min=${min}
      step=${step}
      placeholder=${hint}
      value=${form[name]}
      onInput=${change(name)}
    />
  </label>`;
}

function CheckField({ form, change, name, children }) {
  return html`<label class="check">
    <input type="checkbox" checked=${form[name]} onChange=${change(name)} />
    <span>${children}</span>
  </label>`;
}

function SelectField({ form, change, name, label, options }) {
  return html`<label class="field">
    <span>${label}</span>
    <select value=${form[name]} onChange=${change(name)}>
      ${options.map(
        ([key, text]) => html`<option value=${key} selected=${key === form[name]}>${text}</option>`,
      )}
    </select>
  </label>`;
}

function Plan({ plan, document, names, isDeploying, onDeploy }) {
  const heading = useRef(null);
  useEffect(() => heading.current?.focus(), [plan]);
  const known = new Map(names);
  for (const node of plan.nodes) {
    if (!known.has(node.node_id) && node.name) known.set(node.node_id, node.name);
  }
  const name = (nodeId) => nameOf(known, nodeId);
  const rate = (perSecond) => `${formatNumber(perSecond)} tokens/s`;
  const memory = planMemory(plan);
  const { prediction } = plan;
  const path = pathOf(plan, linksOf(document));
  return html`<div class="plan">
    <h3 ref=${heading} tabindex="-1">The model fits: ${count(plan.stages.length, "stage")}</h3>
    <dl class="facts">
      <${Fact} name="Memory">
        ${formatBytes(memory.totalBytes)} in total${memory.fullest === null
          ? ""
          : `; the fullest unit uses ${formatPercent(memory.fullest)} of its usable memory`}
      <//>
      <${Fact} name="Context">
        ${plan.context_tokens} tokens, cache of ${plan.cache_tokens} tokens
      <//>
      <${Fact} name="Quantization">${plan.quantization}<//>
      ${prediction
        ? html`<${Fact} name="Predicted speed">
              ${rate(prediction.tokens_per_second)} for one stream,${" "}
              ${rate(prediction.total_tokens_per_second)} for${" "}
              ${count(prediction.num_streams, "stream")} together${" "}
              (±${formatPercent(prediction.margin)})
            <//>
            <${Fact} name="First token">
              ${formatSeconds(prediction.first_token_seconds)} for a prompt of${" "}
              ${prediction.prompt_tokens} tokens
            <//>`
        : html`<${Fact} name="Predicted speed">unknown: planned without measurements<//>`}
    </dl>
    ${plan.remarks.map((remark) => html`<p class="note">${remark}</p>`)}
    ${alternatives(plan, name, rate).map((text) => html`<p class="note">${text}</p>`)}
    <h4>The path of a token</h4>
    <${TokenPath} path=${path} numLayers=${plan.num_layers} names=${known} heading="h5" />
    <h4>Units not used</h4>
    ${plan.rejections.length === 0
      ? html`<p>Every unit is used.</p>`
      : html`<${Scrolling} label="Units not used">
          <table>
            <thead>
              <tr>
                <th scope="col">Node</th>
                <th scope="col">Unit</th>
                <th scope="col">Reason</th>
                <th scope="col">A token would take</th>
              </tr>
            </thead>
            <tbody>
              ${plan.rejections.map(
                (each) =>
                  html`<tr>
                    <th scope="row">${name(each.node_id)}</th>
                    <td>${each.unit_id}</td>
                    <td class="reason">${each.reason}</td>
                    <td>${addedText(each.added_seconds)}</td>
                  </tr>`,
              )}
            </tbody>
          </table>
        <//>`}
    <button type="button" class="button primary" disabled=${isDeploying} onClick=${onDeploy}>
      ${isDeploying ? "Starting …" : "Deploy this plan"}
    </button>
  </div>`;
}

function addedText(seconds) {
  if (seconds === null) return "not computed";
  const longer = seconds >= 0 ? "longer" : "less";
  return `${formatSeconds(Math.abs(seconds))} ${longer} with it`;
}
