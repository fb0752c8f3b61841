//! Scripts of `sapwood apply`: plain lines, lines of JSON, requests of debugfs. Nothing panics, and
//! a command means the same as a line of JSON.
//!
//! Input: a byte, then the script. If the byte is odd, the script has requests of debugfs.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the shell uses the rest")]
#[path = "../../crates/cli/src/script.rs"]
mod script;

#[allow(dead_code, reason = "the command uses the rest")]
#[path = "../../crates/cli/src/apply/debugfs.rs"]
mod debugfs;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, text)) = bytes.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(text);
    if kind % 2 == 1 {
        requests(&text);
    } else {
        commands(&text);
    }
});

fn commands(text: &str) {
    let Ok(lines) = script::parse(text) else {
        return;
    };
    let mut last = 0;
    for line in lines {
        assert!(line.number > last, "lines are in order");
        last = line.number;
        assert!(!line.words.is_empty());
        let input = line.input.as_deref().map(std::str::from_utf8);
        let input = input.transpose().expect("the script was text");
        let json = serde_json::json!({ "args": line.words, "input": input }).to_string();
        let again = script::parse(&json).expect("its own JSON");
        let [again] = &again[..] else {
            panic!("{json}: {} commands", again.len());
        };
        assert_eq!((&again.words, &again.input), (&line.words, &line.input));
    }
}

fn requests(text: &str) {
    let Ok(requests) = debugfs::parse(text) else {
        return;
    };
    for request in requests {
        let words = &request.line.words;
        let command = words.first().expect("a command");
        let known = [
            "cp", "mkdir", "rm", "ln", "xattr", "chmod", "chown", "cat", "ls", "stat",
        ];
        assert!(known.contains(&&**command), "{words:?}");
    }
}
