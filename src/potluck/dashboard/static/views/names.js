// What nodes are called, also those that have left since the page was opened.

import { computed, effect } from "../lib.js";
import { cluster } from "../state.js";
import { nodeNames } from "./cluster_model.js";

const known = new Map();

effect(() => {
  for (const node of cluster.value?.nodes ?? []) if (node.name) known.set(node.node_id, node.name);
});

/** Node ids to names. */
export const namesOfNodes = computed(() => nodeNames(cluster.value?.nodes ?? [], known));
