#!/usr/bin/env python3
"""Checks the manifests of this folder: their fields by schemas, names that stand for each other, and command lines.

    pip install kubernetes-validate
    WAGGLE=target/release/waggle examples/deploy/check.py

Each manifest is also tried with an unknown field at every place, which its schema must refuse.
"""

import copy
import os
import pathlib
import subprocess

import jsonschema
import kubernetes_validate
import yaml

WHOLE, TEXT, FLAG, PODS = {"type": "integer", "minimum": 0}, {"type": "string"}, {"type": "boolean"}, {"type": "object"}


def fields(required, **properties):
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


# What is used here of manifests/base/kubeflow.org_mpijobs.yaml (v2beta1) of kubeflow/mpi-operator, revision caa3c47.
REPLICAS = fields(["template"], replicas=WHOLE, restartPolicy={"enum": ["Never", "OnFailure"]}, template=PODS)
JOB = fields(
    ["metadata", "spec"],
    apiVersion={"const": "kubeflow.org/v2beta1"},
    kind={"const": "MPIJob"},
    metadata=fields(["name"], name=TEXT),
    spec=fields(
        ["mpiReplicaSpecs"],
        slotsPerWorker=WHOLE,
        runLauncherAsWorker=FLAG,
        sshAuthMountPath=TEXT,
        runPolicy=fields([], cleanPodPolicy={"enum": ["None", "Running", "All"]}, backoffLimit=WHOLE),
        mpiReplicaSpecs=fields(["Launcher"], Launcher=REPLICAS, Worker=REPLICAS),
    ),
)


def templates(document):
    """The templates of pods in a document."""
    spec = document.get("spec", {})
    return [part["template"] for part in [spec, *spec.get("mpiReplicaSpecs", {}).values()] if "template" in part]


def check(document):
    """Raises an error unless the schemas know all fields of the document."""
    documents = [document]
    if document["kind"] == "MPIJob":
        jsonschema.validate(document, JOB)
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pods"}}
        documents = [{**pods, "template": template} for template in templates(document)]
    for document in documents:
        kubernetes_validate.validate(document, "1.31", strict=True)


def mappings(value, name=None):
    """All mappings within a document but those whose keys are the user's."""
    if isinstance(value, dict):
        if name not in ("labels", "matchLabels", "data", "requests") and (name != "selector" or "matchLabels" in value):
            yield value
        for key, part in value.items():
            yield from mappings(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from mappings(part)


def main():
    for path in sorted(pathlib.Path(__file__).parent.glob("*.yaml")):
        documents = list(yaml.safe_load_all(path.read_text()))
        names = {document["metadata"]["name"] for document in documents}
        pods = [template for document in documents for template in templates(document)]
        labels = [pod["metadata"]["labels"] for pod in pods if "metadata" in pod]
        # The operator gives its own to a job's pods.
        operator = "training.kubeflow.org"
        labels += [{f"{operator}/job-name": name, f"{operator}/job-role": "launcher"} for name in names]
        for document in documents:
            check(document)
            for at in range(len(list(mappings(document)))):
                spoiled = copy.deepcopy(document)
                list(mappings(spoiled))[at]["unheardOf"] = "x"
                try:
                    check(spoiled)
                except (jsonschema.ValidationError, kubernetes_validate.ValidationError):
                    continue
                raise AssertionError(f"{path.name}: this passes: {spoiled}")
            if document["kind"] == "Service":
                assert any(document["spec"]["selector"].items() <= label.items() for label in labels), document
        for volume in (volume for pod in pods for volume in pod["spec"]["volumes"]):
            used = [volume.get("persistentVolumeClaim", {}).get("claimName"), volume.get("configMap", {}).get("name")]
            assert names.issuperset(filter(None, used)), volume
        containers = [container for pod in pods for container in pod["spec"]["containers"]]
        lines = [[*container.get("command", ["waggle"]), *container["args"]] for container in containers]
        lines = [line[line.index("waggle") + 1 :] for line in lines if "waggle" in line]
        assert lines, f"{path.name}: nothing runs"
        for line in lines:
            # Options are read before help is given.
            subprocess.run([os.environ.get("WAGGLE", "waggle"), *line, "--help"], check=True, stdout=subprocess.DEVNULL)
        print(f"{path.name}: {len(documents)} documents and {len(lines)} command lines are good")


if __name__ == "__main__":
    main()
