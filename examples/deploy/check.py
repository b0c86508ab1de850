#!/usr/bin/env python3
"""Checks the manifests of this folder: fields by their schemas, names that stand for each other, the program's options.

    pip install kubernetes-validate
    WAGGLE=target/release/waggle examples/deploy/check.py

What a schema does not know is refused, and each manifest is tried with such a field at every place, too.
"""

import copy
import os
import pathlib
import subprocess

import jsonschema
import kubernetes_validate
import yaml

KUBERNETES = "1.31"


def fields(required, **properties):
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


# What is used here of manifests/base/kubeflow.org_mpijobs.yaml (v2beta1) of kubeflow/mpi-operator, revision caa3c47.
WHOLE, TEXT, TRUTH = {"type": "integer", "minimum": 0}, {"type": "string"}, {"type": "boolean"}
RESTART, CLEAN = {"enum": ["Never", "OnFailure"]}, {"enum": ["None", "Running", "All"]}
POLICY = fields([], cleanPodPolicy=CLEAN, backoffLimit=WHOLE)
REPLICAS = fields(["template"], replicas=WHOLE, restartPolicy=RESTART, template={"type": "object"})
KINDS = fields(["Launcher"], Launcher=REPLICAS, Worker=REPLICAS)
SPEC = fields(["mpiReplicaSpecs"], slotsPerWorker=WHOLE, runLauncherAsWorker=TRUTH, sshAuthMountPath=TEXT,
              runPolicy=POLICY, mpiReplicaSpecs=KINDS)
JOB = fields(["metadata", "spec"], apiVersion={"const": "kubeflow.org/v2beta1"}, kind={"const": "MPIJob"},
             metadata=fields(["name"], name=TEXT), spec=SPEC)
# Maps whose keys are the user's.
FREE = {"labels", "matchLabels", "data", "requests"}


def templates(document):
    """The templates of pods in a document."""
    spec = document.get("spec", {})
    return [part["template"] for part in [spec, *spec.get("mpiReplicaSpecs", {}).values()] if "template" in part]


def check(document):
    """Raises an error unless a schema has all fields of the document."""
    if document["kind"] != "MPIJob":
        return kubernetes_validate.validate(document, KUBERNETES, strict=True)
    jsonschema.validate(document, JOB)
    for template in templates(document):
        # Kubernetes' own schema has the pods.
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pods"}, "template": template}
        kubernetes_validate.validate(pods, KUBERNETES, strict=True)


def mappings(value, name=None):
    """All mappings within a document that have a fixed set of keys."""
    if isinstance(value, dict):
        if name not in FREE and not (name == "selector" and "matchLabels" not in value):
            yield value
        for key, part in value.items():
            yield from mappings(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from mappings(part)


def refuses(document):
    try:
        check(document)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError):
        return True
    return False


def check_names(documents):
    """Services find pods, and volumes claims and maps, of the same file."""
    pods = [template for document in documents for template in templates(document)]
    labels = [pod["metadata"]["labels"] for pod in pods if "metadata" in pod]
    # The operator's.
    labels += [{"training.kubeflow.org/job-name": document["metadata"]["name"],
                "training.kubeflow.org/job-role": "launcher"} for document in documents if document["kind"] == "MPIJob"]
    names = {document["metadata"]["name"] for document in documents}
    for service in (document for document in documents if document["kind"] == "Service"):
        assert any(service["spec"]["selector"].items() <= label.items() for label in labels), service
    for volume in (volume for pod in pods for volume in pod["spec"]["volumes"]):
        used = [volume.get("persistentVolumeClaim", {}).get("claimName"), volume.get("configMap", {}).get("name")]
        assert names.issuperset(filter(None, used)), volume


def main():
    for path in sorted(pathlib.Path(__file__).parent.glob("*.yaml")):
        documents = list(yaml.safe_load_all(path.read_text()))
        spoiled = 0
        for document in documents:
            check(document)
            for at in range(len(list(mappings(document)))):
                other = copy.deepcopy(document)
                list(mappings(other))[at]["unheardOf"] = "x"
                assert refuses(other), f"{path.name}: this passes: {other}"
                spoiled += 1
        check_names(documents)
        pods = [pod["spec"]["containers"][0] for document in documents for pod in templates(document)]
        lines = [["waggle", *pod["args"]] if "command" not in pod else pod["args"] for pod in pods]
        lines = [line[line.index("waggle") + 1 :] for line in lines if "waggle" in line]
        for line in lines:
            # Options are read before help is given.
            subprocess.run([os.environ.get("WAGGLE", "waggle"), *line, "--help"], check=True, stdout=subprocess.DEVNULL)
        assert lines, f"{path.name}: nothing runs"
        print(f"{path.name}: {len(documents)} documents, {spoiled} unknown fields refused, {len(lines)} command lines")


if __name__ == "__main__":
    main()
