// The Series view: charts of the last minutes of a model, from the agent's ring of one hour.

import { html, signal, useEffect, useMemo, useState } from "../lib.js";
import { request } from "../api.js";
import { cluster, connection, samples } from "../state.js";
import { Chart } from "./chart.js";
import { Choice, Failure } from "./parts.js";
import { CHARTS, columnsOf, modelIds, RANGES } from "./series_data.js";

const MAX_POINTS = 720; // more than a chart has pixels to show apart

const chosenModel = signal(null);
const chosenRange = signal(RANGES[0][0]);

export function SeriesView() {
  const seconds = chosenRange.value;
  const [series, setSeries] = useState(null);
  const [error, setError] = useState(null);
  const isLive = connection.value === "live";
  useEffect(() => {
    // Asked again after the stream was cut off: the samples have a gap then.
    const aborting = new AbortController();
    const step = Math.ceil(seconds / MAX_POINTS);
    request(`cluster/series?seconds=${seconds}&step=${step}`, { signal: aborting.signal })
      .then((document) => {
        setSeries(document);
        setError(null);
      })
      .catch((failure) => {
        if (failure.name !== "AbortError") setError(failure);
      });
    return () => aborting.abort();
  }, [seconds, isLive]);
  const deployed = (cluster.value?.deployments ?? []).map((each) => each.model_id);
  const known = modelIds(series, samples.value, deployed);
  const modelId = known.includes(chosenModel.value) ? chosenModel.value : known[0];
  const end = samples.value.at(-1)?.time ?? series?.times.at(-1) ?? Date.now() / 1000;
  const columns = useMemo(
    () => CHARTS.map((chart) => columnsOf(chart, modelId, series, samples.value, seconds)),
    [modelId, series, samples.value, seconds],
  );
  return html`<section class="view series-view" aria-labelledby="series-title">
    <h1 id="series-title">Series</h1>
    <div class="choices">
      <${Choice}
        label="Range"
        options=${RANGES}
        value=${seconds}
        onChoose=${(range) => {
          chosenRange.value = range;
        }}
      />
      ${known.length > 1 &&
      html`<${Choice}
        label="Model"
        options=${known.map((each) => [each, each])}
        value=${modelId}
        onChoose=${(each) => {
          chosenModel.value = each;
        }}
      />`}
    </div>
    ${error && html`<${Failure} title="The series cannot be read." error=${error} />`}
    ${known.length === 0
      ? html`<p>No model is deployed.</p>`
      : html`<div class="charts">
          ${CHARTS.map(
            (chart, index) =>
              html`<${Chart}
                key=${chart.key}
                chart=${chart}
                columns=${columns[index]}
                start=${end - seconds}
                end=${end}
              />`,
          )}
        </div>`}
  </section>`;
}
