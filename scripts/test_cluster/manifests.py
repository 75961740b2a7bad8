"""Checks scripts/kubernetes against the schemas of Kubernetes, and the used parts of the schemas of KEDA."""

from pathlib import Path

import jsonschema
import yaml
from cluster import check

FOLDER = Path(__file__).parent.parent / "kubernetes"
NAME = {"type": "string", "minLength": 1}


def spec(required, properties):
    return {
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": False,
        "properties": {
            "apiVersion": {"const": "keda.sh/v1alpha1"},
            "kind": NAME,
            "metadata": {"type": "object", "required": ["name"]},
            "spec": {"type": "object", "required": required, "additionalProperties": False, "properties": properties},
        },
    }


# From KEDA's CustomResourceDefinitions (config/crd/bases), v2.
KEDA = {
    "TriggerAuthentication": spec(
        ["secretTargetRef"],
        {
            "secretTargetRef": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["key", "name", "parameter"],
                    "additionalProperties": False,
                    "properties": {"key": NAME, "name": NAME, "parameter": NAME},
                },
            }
        },
    ),
    "ScaledObject": spec(
        ["scaleTargetRef", "triggers"],
        {
            "scaleTargetRef": {"type": "object", "required": ["name"], "properties": {"name": NAME}},
            "minReplicaCount": {"type": "integer", "minimum": 0},
            "maxReplicaCount": {"type": "integer", "minimum": 1},
            "pollingInterval": {"type": "integer"},
            "cooldownPeriod": {"type": "integer"},
            "triggers": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["metadata", "type"],
                    "additionalProperties": False,
                    "properties": {
                        "type": {"const": "rabbitmq"},
                        "metadata": {
                            "type": "object",
                            "required": ["queueName", "mode", "value"],
                            "additionalProperties": False,
                            "properties": {
                                "queueName": {"pattern": r"^flux\.[A-Za-z0-9._-]+\.(batch|online)$"},
                                "mode": {"enum": ["QueueLength", "MessageRate", "ExpectedQueueConsumptionTime"]},
                                "value": {"type": "string", "pattern": "^[0-9]+$"},
                                "protocol": {"enum": ["amqp", "http", "auto"]},
                            },
                        },
                        "authenticationRef": {"type": "object", "required": ["name"], "properties": {"name": NAME}},
                    },
                },
            },
        },
    ),
}


def run():
    import kubernetes_validate

    documents = list(yaml.safe_load_all((FOLDER / "worker.yaml").read_text()))
    kinds = [document["kind"] for document in documents]
    check(kinds == ["Deployment", "TriggerAuthentication", "ScaledObject"], "the manifests are the expected ones")
    for document in documents:
        if document["kind"] in KEDA:
            jsonschema.validate(document, KEDA[document["kind"]])
        else:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        print(f"ok: {document['kind']} matches its schema", flush=True)
    names = {document["kind"]: document["metadata"]["name"] for document in documents}
    scaled = documents[2]["spec"]
    check(scaled["scaleTargetRef"]["name"] == names["Deployment"], "the Deployment is scaled")
    for trigger in scaled["triggers"]:
        check(trigger["authenticationRef"]["name"] == names["TriggerAuthentication"], "each trigger has an authentication")
    broken = dict(documents[0], spec=dict(documents[0]["spec"], replicaz=1))
    try:
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError:
        return
    raise SystemExit("FAILED: the validator accepts a field that does not exist")
