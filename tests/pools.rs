//! A pool that `waggle preprocess` has filled serves one generation, and no other.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use crate::support::{Keys, Server, bytes, fail, fails, home, json, succeed, until, waggle};
use serde_json::Value;

const PROMPT: &str = "--prompt-ids 30,27,25,17,27,10,0 --tokens 4";

fn files(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn a_pool_serves_one_generation() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, pool, copy) = (dir.path().join("kept"), dir.path().join("a.pool"), dir.path().join("b.pool"));
    let server = Server::start(&format!("--model shakespeare-gpt2 --pools {}", kept.display()));
    let preprocess = |pool: &Path, bound: &str| {
        waggle(&format!("preprocess --connect {} --pool {} {bound}", server.address, pool.display()))
    };
    let generate = |pool: &Path, what: &str| server.client(&format!("--pool {} {what}", pool.display()));

    let made = json(&mut preprocess(&pool, "--prompt-len 7 --tokens 4"));
    assert_eq!((files(&kept), pool.is_file()), (1, true));
    fails(&mut preprocess(&pool, "--prompt-len 7 --tokens 4"), 1, ["no pool is overwritten"]);
    std::fs::copy(&pool, &copy).unwrap();

    let report = json(&mut generate(&pool, PROMPT));
    let truth = json(&mut waggle(&format!("float --model shakespeare-gpt2 {PROMPT}")));
    assert_eq!(report["tokens"], truth["tokens"]);
    // The OTs alone are left, which no file holds.
    let offline = |report: &Value| bytes(&report["phases"]["offline"]);
    let (before, left) = (offline(&made), offline(&report));
    assert!(2 * left < before, "{left} bytes are left of {before}");
    let kinds = report["preparation_kinds"].as_array().unwrap();
    assert!(kinds.len() == 1 && kinds[0]["path"] == "OTs", "{kinds:?}");
    let flows = &report["phases"]["offline"]["flows"];
    assert_eq!(&kinds[0]["flows"], flows, "nothing is made on the spot");
    assert_eq!(files(&kept) + usize::from(pool.exists()), 0, "both files are gone");

    fails(&mut generate(&pool, PROMPT), 1, ["a.pool: there is no pool here: it was used already"]);
    let error = fail(&mut generate(&copy, PROMPT), 1);
    assert!(error.contains("the server refuses: there is no pool ") && !error.contains("kept"), "{error}");

    // A copy of the server's file is not the client's.
    succeed(&mut preprocess(&pool, "--prompt-len 2 --tokens 1"));
    let theirs = std::fs::read_dir(&kept).unwrap().next().unwrap().unwrap().path();
    let error = fail(&mut generate(&theirs, "--prompt-ids 1 --tokens 1"), 1);
    assert!(error.contains("a pool of the server, expected one of the client"), "{error}");
    fails(&mut generate(&pool, "--prompt-ids 1,2,3 --tokens 1"), 1, ["3 tokens of a prompt are more than the 2"]);
    fails(&mut generate(&pool, "--preprocess false --prompt-ids 1 --tokens 1"), 1, ["--preprocess"]);
    let bytes = std::fs::read(&pool).unwrap();
    std::fs::write(&pool, &bytes[..bytes.len() - 1]).unwrap();
    let error = fail(&mut generate(&pool, "--prompt-ids 1 --tokens 1"), 1);
    assert!(error.contains(&format!("has {} bytes, expected {}", bytes.len() - 1, bytes.len())), "{error}");
}

#[test]
fn a_pool_in_parts_serves_one_generation() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, pool) = (dir.path().join("kept"), dir.path().join("a.pool"));
    // Two processes over one directory.
    let serve = || Server::start(&format!("--model shakespeare-llama --pools {} --max-pools 1", kept.display()));
    let servers = [serve(), serve()];
    let preprocess = |server: usize, part: &str| {
        let connect = format!("preprocess --connect {} --prompt-len 7 --tokens 4", servers[server].address);
        waggle(&format!("{connect} --pool {} --part {part}", pool.display()))
    };
    let generate = |what: &str| servers[1].client(&format!("--pool {} {what}", pool.display()));
    for part in ["0/3", "4/3", "1", "1/257"] {
        fails(&mut preprocess(0, part), 2, ["expected I/N"]);
    }
    succeed(&mut preprocess(0, "1/3"));
    assert!(succeed(&mut preprocess(1, "3/3")).ends_with(" filled (part 3/3)\n"));
    fails(&mut preprocess(1, "3/3"), 1, ["a.pool.3-of-3: a file exists already, and no pool is overwritten"]);
    fails(&mut generate(PROMPT), 1, ["a.pool: part 2/3 of the pool is missing"]);
    assert_eq!(files(&kept), 2, "nothing was used");

    let report = json(&mut preprocess(0, "2/3"));
    assert_eq!(report["options"]["part"], "2/3");
    // Three thirds are the one pool that a key may have.
    fails(&mut preprocess(0, "1/1"), 1, ["this server keeps 1 pool for this client already"]);
    let listed = json(&mut waggle(&format!("pools list {} {}", dir.path().display(), kept.display())));
    let parts = |role: &str| {
        let of = listed.as_array().unwrap().iter().filter(|file| file["role"] == role);
        let mut parts: Vec<(String, String)> = of
            .map(|file| (format!("{}/{}", file["part"], file["parts"]), file["id"].as_str().unwrap().to_owned()))
            .collect();
        parts.sort();
        parts
    };
    assert_eq!(parts("client").iter().map(|(part, _)| &part[..]).collect::<Vec<_>>(), ["1/3", "2/3", "3/3"]);
    assert_eq!(parts("client"), parts("server"), "each part has its partner");

    let report = json(&mut generate(PROMPT));
    let truth = json(&mut waggle(&format!("float --model shakespeare-llama {PROMPT}")));
    assert_eq!(report["tokens"], truth["tokens"]);
    let ids: Vec<&str> =
        report["options"]["pool"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    assert_eq!(ids, parts("client").iter().map(|(_, id)| id.as_str()).collect::<Vec<_>>());
    assert_eq!(files(&kept) + files(dir.path()), 1, "all files are gone, a directory is left");
}

/// A helper deals when pools are filled, and may be gone when they are spent.
#[test]
fn a_pool_that_a_helper_dealt_outlives_it() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, pool) = (dir.path().join("kept"), dir.path().join("a.pool"));
    let keys = tempfile::tempdir().unwrap();
    let Keys { server, helper, of_server, of_helper, allowed } = Keys::new(keys.path(), &home());
    let helper = Server::run(&mut waggle(&format!("helper --listen 127.0.0.1:0 {helper} {allowed}")));
    let named = format!("--helper {} --helper-key {of_helper}", helper.address);
    let serve = |terms: &str| {
        let keys = format!("{server} {allowed}");
        Server::start(&format!("--model shakespeare-llama --pools {} {keys} {terms}", kept.display()))
    };
    let fill = |server: &Server, more: &str| {
        let trust = format!("--server-key {of_server}");
        let connect = format!("preprocess --connect {} --prompt-len 7 --tokens 4 {trust}", server.address);
        waggle(&format!("{connect} --pool {} {more}", pool.display()))
    };
    let spend = |server: &Server, more: &str| {
        server.client(&format!("{PROMPT} --pool {} --server-key {of_server} {more}", pool.display()))
    };
    let truth = json(&mut waggle(&format!("float --model shakespeare-llama {PROMPT}")));

    let weights = format!("{named} --helper-weights");
    let servers = [&named, &weights].map(|terms| serve(terms));
    let alone = serve("");
    let three = format!("{named} --parties 3");
    let mut serving =
        waggle(&format!("serve --listen 127.0.0.1:0 --model shakespeare-llama --pools {} {three}", kept.display()));
    for command in [&mut serving, &mut fill(&servers[0], &three), &mut spend(&servers[0], &three)] {
        fails(command, 1, ["three parties take no pool"]);
    }
    fails(&mut fill(&servers[0], ""), 1, ["helper-deals: client says nothing, server says words"]);
    for part in ["1/2", "2/2"] {
        let made = json(&mut fill(&servers[1], &format!("{weights} --part {part}")));
        assert!(made["helper"]["client"]["bytes_from_helper"].as_u64().unwrap() > 0, "{}", made["helper"]);
        helper.wait_for("dealt: ");
    }
    helper.stop();
    fails(
        &mut spend(&alone, ""),
        1,
        ["made for another session: ", "helper is `ed25519:", "helper-deals is `weights`"],
    );
    fails(&mut spend(&servers[0], &named), 1, ["helper-deals is `weights`, expected `words`"]);
    let report = json(&mut spend(&servers[1], &weights));
    assert_eq!(report["tokens"], truth["tokens"]);
    assert!(report["helper"].is_null(), "nobody asked it: {}", report["helper"]);
    let kinds = report["preparation_kinds"].as_array().unwrap();
    assert!(kinds.len() == 1 && kinds[0]["path"] == "OTs", "{kinds:?}");
    assert_eq!(files(&kept) + files(dir.path()), 1, "all files are gone, a directory is left");
}

/// Places in the memory that a process may write where 32 bytes of `secret` stand together.
#[cfg(target_os = "linux")]
fn copies(process: u32, secret: &[u8]) -> usize {
    const RUN: usize = 32;
    let first = |run: &[u8]| u64::from_le_bytes(*run.first_chunk().unwrap());
    let random = |run: &&[u8]| run.iter().collect::<HashSet<_>>().len() > RUN / 2;
    let runs: HashSet<&[u8]> = secret.chunks_exact(RUN).filter(random).collect();
    let firsts: HashSet<u64> = runs.iter().map(|run| first(run)).collect();
    let mut memory = File::open(format!("/proc/{process}/mem")).unwrap();
    let maps = BufReader::new(File::open(format!("/proc/{process}/maps")).unwrap());
    // Addresses, permissions, offset, device, inode, and the name of a file if there is one.
    let own = maps.lines().map(Result::unwrap).filter(|map| {
        let mut fields = map.split_whitespace();
        fields.nth(1).unwrap().contains('w') && !fields.nth(3).is_some_and(|name| name.starts_with('/'))
    });
    let found = own.map(|map| {
        let ends = map.split_whitespace().next().unwrap().split('-');
        let [start, end] = ends.map(|at| u64::from_str_radix(at, 16).unwrap()).collect::<Vec<_>>()[..] else {
            panic!()
        };
        let mut bytes = vec![0; (end - start) as usize];
        memory.seek(SeekFrom::Start(start)).unwrap();
        // Memory that was unmapped in between is gone as well.
        if memory.read_exact(&mut bytes).is_err() {
            return 0;
        }
        bytes.windows(RUN).filter(|run| firsts.contains(&first(run)) && runs.contains(run)).count()
    });
    found.sum()
}

/// A server wipes what it frees: after the session that made a pool, none of the pool's words are in its memory.
#[cfg(target_os = "linux")]
#[test]
fn nothing_of_a_pool_stays_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, pool) = (dir.path().join("kept"), dir.path().join("a.pool"));
    let server = Server::start(&format!("--model shakespeare-gpt2 --pools {}", kept.display()));
    let bound = format!("--pool {} --prompt-len 3 --tokens 2", pool.display());
    succeed(&mut waggle(&format!("preprocess --connect {} {bound}", server.address)));
    server.wait_for(" filled");
    let words = std::fs::read(std::fs::read_dir(&kept).unwrap().next().unwrap().unwrap().path()).unwrap();
    assert!(copies(std::process::id(), &words) > 10_000, "they are in the memory of whoever reads the file");
    // Its thread may still be at the end of the session.
    until(|| (copies(server.child.id(), &words) == 0).then_some(()));
}

/// Flips a bit of `file`, `from_end` bytes before its end or, if that is 0, in its header.
fn damage(file: &Path, from_end: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    let at = if from_end == 0 { 20 } else { bytes.len() - from_end };
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn a_pool_that_was_lost_makes_room_for_another() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, mine) = (dir.path().join("kept"), dir.path().join("mine"));
    std::fs::create_dir(&mine).unwrap();
    let server = Server::start(&format!("--model shakespeare-gpt2 --max-pools 1 --pools {}", kept.display()));
    let at = |name: &str| mine.join(name);
    let fill = |name: &str, more: &str| {
        let connect = format!("preprocess --connect {} --prompt-len 2 --tokens 1", server.address);
        waggle(&format!("{connect} --pool {} {more}", at(name).display()))
    };
    let spend = |name: &str| server.client(&format!("--prompt-ids 1,2 --tokens 1 --pool {}", at(name).display()));
    let only_mine = format!("--forget-all-but {}", mine.display());

    // Words that are damaged: the client notices when it claims them, and the server hears of it.
    succeed(&mut fill("a", ""));
    damage(&at("a"), 40);
    let error = fail(&mut spend("a"), 1);
    assert!(error.contains("the checksum of its words") && error.contains("; the pool is lost"), "{error}");
    server.wait_for("the client gives up: its part is lost: its pool is corrupted in its words");
    assert_eq!((files(&kept), files(&mine)), (0, 0), "both files are gone");

    // A damaged header: the client cannot know which pool it was, so it says which ones it has.
    succeed(&mut fill("b", ""));
    damage(&at("b"), 0);
    fails(&mut spend("b"), 1, ["the checksum of its header"]);
    let error = fail(&mut fill("c", ""), 1);
    assert!(error.contains("this server keeps 1 pool for this client already; spend some"), "{error}");
    succeed(&mut fill("c", &only_mine));
    assert_eq!(files(&kept), 1);

    // A client that was killed in the middle of a spend leaves no file of its own, and the server's waits.
    std::fs::remove_file(at("c")).unwrap();
    let theirs = std::fs::read_dir(&kept).unwrap().next().unwrap().unwrap().path();
    std::fs::rename(&theirs, theirs.with_extension("pending")).unwrap();
    fails(&mut fill("d", ""), 1, ["1 pool of this client's may wait for its word"]);
    succeed(&mut fill("d", &only_mine));

    // The pool that the client has is not forgotten, and counts.
    fails(&mut fill("e", &only_mine), 1, ["this server keeps 1 pool for this client already"]);
    succeed(&mut spend("d"));
    assert_eq!(files(&kept), 0);
}

#[cfg(unix)]
#[test]
fn a_pool_that_others_may_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (kept, pool) = (dir.path().join("kept"), dir.path().join("a.pool"));
    let server = Server::start(&format!("--model shakespeare-gpt2 --pools {}", kept.display()));
    let fill = format!("preprocess --connect {} --prompt-len 2 --tokens 1 --pool", server.address);
    succeed(waggle(&fill).arg(&pool));
    let mode = |path: &Path, mode: u32| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let spend = || server.client(&format!("--prompt-ids 1,2 --tokens 1 --pool {}", pool.display()));
    let theirs = std::fs::read_dir(&kept).unwrap().next().unwrap().unwrap().path();
    for (file, open) in [(&pool, 0o640), (&pool, 0o602), (&theirs, 0o604)] {
        mode(file, open);
        fails(&mut spend(), 1, ["others may read or write the pool"]);
        mode(file, 0o600);
    }
    succeed(&mut spend());
}
