//! A server under mpirun: the same sessions as one process has, to the byte, and one end for all ranks.

use std::process::Command;

use crate::support::{Ended, LIMIT, Process, Server, children, copy_model, json, program, signal};
use serde_json::Value;

/// A free port of this machine.
const FREE: &str = "--listen 127.0.0.1:0";

/// mpirun, with one rank for each of these models.
fn mpirun(models: &[&str], arguments: &str) -> Command {
    let mut command = program("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe"]);
    for (rank, model) in models.iter().enumerate() {
        if rank > 0 {
            command.arg(":");
        }
        command.args(["-n", "1", env!("CARGO_BIN_EXE_waggle"), "serve", "--model", model]);
        command.args(arguments.split_whitespace());
    }
    command
}

/// The pid of a rank of a job that runs on this machine.
#[cfg(target_os = "linux")]
fn pid_of(mpirun: &Server, rank: usize) -> u32 {
    let variable = format!("OMPI_COMM_WORLD_RANK={rank}");
    let is_rank = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
    };
    children(mpirun.child.id()).into_keys().find(is_rank).expect("Open MPI starts the ranks itself")
}

/// Whatever a report counts, and what was generated; not what is measured, nor what made the report and when.
fn counted(report: &Value) -> Value {
    match report {
        Value::Object(fields) => {
            let measured = ["seconds", "cpu", "memory", "wire", "model", "per_second", "provenance"];
            let counted = fields.iter().filter(|(name, _)| !measured.iter().any(|word| name.contains(word)));
            Value::Object(counted.map(|(name, value)| (name.clone(), self::counted(value))).collect())
        }
        Value::Array(values) => Value::Array(values.iter().map(counted).collect()),
        value => value.clone(),
    }
}

#[test]
fn sessions_are_those_of_one_process_to_the_byte() {
    for model in ["shakespeare-gpt2", "shakespeare-llama"] {
        let alone = Server::start(&format!("--model {model}"));
        let spread = Server::run(&mut mpirun(&[model, model, model], &format!("{FREE} --sessions 2")));
        spread.wait_for("this rank has its columns");
        for phases in ["--preprocess", ""] {
            // Links as they are measured may differ on a busy machine, and plans with them.
            let arguments = format!("--prompt JULIET: --tokens 6 --plan-for lan {phases}");
            let (one, many) = (json(&mut alone.client(&arguments)), json(&mut spread.client(&arguments)));
            assert!(one["text"].as_str().is_some_and(|text| text.len() > 3), "{one}");
            let online = &one["phases"]["decode"]["bytes_client_to_server"];
            assert!(online.as_u64().is_some_and(|bytes| bytes > 1000), "{one}");
            assert_eq!(counted(&one), counted(&many), "{model} {phases}");
        }
        // Two sessions at once: their products take turns.
        let mut client = spread.client("--prompt JULIET: --tokens 6 --preprocess");
        let clients = [(); 2].map(|()| Process::start(&mut client));
        let texts = clients.map(|client| client.end(5 * LIMIT).text);
        assert!(!texts[0].is_empty() && texts[0] == texts[1], "{texts:?}");
    }
}

#[test]
fn all_ranks_end_with_rank_0() {
    let model = "shakespeare-llama";
    let once = Server::run(&mut mpirun(&[model, model], &format!("{FREE} --once")));
    json(&mut once.client("--prompt JULIET: --tokens 2 --preprocess"));
    let Ended { code, errors: log, .. } = once.end(LIMIT);
    assert_eq!(code, Some(0), "{log}");
    let products = log.lines().find(|line| line.contains("the end") && line.contains("rank=1")).expect(&log);
    assert!(!products.contains("products=0"), "{products}");
    // The other ranks need not wait for a rank 0 that cannot listen.
    let taken = Server::start("--model shakespeare-llama");
    let refused = Process::start(&mut mpirun(&[model, model], &format!("--listen {}", taken.address)));
    let Ended { code, errors: log, .. } = refused.end(LIMIT);
    assert!(code != Some(0) && log.contains("error: cannot listen on"), "{log}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_to_rank_0_ends_all_in_good_order_and_a_lost_rank_ends_all() {
    let model = "shakespeare-llama";
    let server = Server::run(&mut mpirun(&[model, model], FREE));
    signal(pid_of(&server, 1), "TERM");
    server.wait_for("this rank ends with rank 0");
    signal(pid_of(&server, 0), "TERM");
    let Ended { code, errors: log, .. } = server.end(LIMIT);
    assert_eq!(code, Some(0), "{log}");

    let server = Server::run(&mut mpirun(&[model, model], FREE));
    signal(pid_of(&server, 1), "KILL");
    let Ended { code, errors: log, .. } = server.end(LIMIT);
    assert_ne!(code, Some(0), "{log}");
    assert!(log.contains("rank 1"), "{log}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_rank_that_dies_costs_the_part_that_its_server_fills() {
    let start = |pools: &str| Server::run(&mut mpirun(&["shakespeare-llama"; 2], &format!("{FREE} {pools}")));
    crate::kills::costs_one_part(start, |server| signal(pid_of(server, 1), "KILL"));
}

#[test]
fn a_rank_with_another_model_or_none_is_named() {
    let model = "shakespeare-llama";
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken");
    copy_model(model, &broken);
    std::fs::write(broken.join("model.safetensors"), b"short").unwrap();
    let retrained = dir.path().join("retrained");
    copy_model(model, &retrained);
    let weights = retrained.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let (broken, retrained) = (broken.to_str().unwrap(), retrained.to_str().unwrap());
    for (models, words) in [
        ([model, model, broken], ["rank 2 on ", "broken/model.safetensors: 5 bytes are no safetensors file"]),
        ([model, "no/such/model", model], ["rank 1 on ", "`no/such/model` is neither a directory nor"]),
        ([model, "shakespeare-gpt2", model], ["rank 1 on ", "has another model than rank 0"]),
        ([model, model, retrained], ["rank 2 on ", "has another model than rank 0"]),
        (["no/such/model", model, model], ["error: ", "`no/such/model` is neither a directory nor"]),
    ] {
        let Ended { code, text, errors: log, .. } = Process::start(&mut mpirun(&models, FREE)).end(LIMIT);
        assert!(code != Some(0) && text.is_empty(), "{log}");
        let named = |line: &str| line.starts_with("error: ") && words.iter().all(|words| line.contains(words));
        assert!(log.lines().any(named), "{words:?} in\n{log}");
    }
}
