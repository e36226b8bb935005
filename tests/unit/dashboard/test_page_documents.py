"""The made-up documents that the page's views are looked at with are like those of an agent."""

import pytest
from support.page import documents as page_documents
from support.schemas import validate_document

SIZES = (1, 3, 14)


@pytest.mark.slow
@pytest.mark.parametrize("num_nodes", SIZES)
@pytest.mark.parametrize("is_loading", [False, True])
def test_clusters_have_the_schema_of_an_agents(num_nodes: int, is_loading: bool) -> None:
    document = page_documents.cluster_document(num_nodes, is_loading=is_loading)
    validate_document(document, "cluster")


@pytest.mark.parametrize("num_nodes", SIZES)
def test_plans_have_the_schema_of_an_agents(num_nodes: int) -> None:
    validate_document(page_documents.plan_document(num_nodes), "plan")


@pytest.mark.parametrize("num_nodes", SIZES)
def test_a_series_has_a_value_for_every_second(num_nodes: int) -> None:
    series = page_documents.series_document(num_nodes, 30)
    assert len(series["times"]) == 30
    assert list(series["models"]) == page_documents.model_ids(num_nodes)
    for fields in series["models"].values():
        for name, values in fields.items():
            columns = values if name.startswith("stage_") else [values]
            assert [len(column) for column in columns] == [30] * len(columns), name
