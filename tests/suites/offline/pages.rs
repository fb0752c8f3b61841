//! Man pages and completions render and load; `--json` parses, whatever the names are.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use sapwood_tests::machine::MOUNTS;
use sapwood_tests::mount::sapwood;
use sapwood_tests::{Need, Outcome, process, scratch, trial};
use serde_json::Value;

use super::LIMIT;

pub(crate) fn trials() -> Vec<Trial> {
    let man = [Need::Program("man"), Need::Program("groff")];
    vec![
        trial("man_pages_render_without_a_warning", &man, man_pages),
        trial("help_reads_well_in_80_and_60_columns", &[], help_pages),
        trial(
            "man_pages_list_options_in_80_and_60_columns",
            &man,
            lists_of_man_pages,
        ),
        trial("completions_load_in_bash", &[Need::Program("bash")], bash),
        trial(
            "paths_in_images_are_completed_in_bash",
            &[Need::Program("bash")],
            paths_in_bash,
        ),
        trial("help_all_has_every_command_and_option_once", &[], help_all),
        trial("doctor_examines_this_machine", &[MOUNTS], doctor),
        trial("lists_are_json_of_one_shape", &[], json),
        trial("a_list_that_fails_is_no_json", &[], failed_lists),
    ]
}

fn man_pages() -> Outcome {
    let dir = scratch::directory();
    let at = dir.path().as_os_str();
    call(&["generate".as_ref(), "man".as_ref(), at])?;
    let pages: Vec<_> = fs::read_dir(dir.path().join("man1"))?.collect::<Result<_, _>>()?;
    for page in &pages {
        let path = page.path();
        let mut man = Command::new("man");
        man.args(["--warnings", "-l"])
            .arg(&path)
            .env("MANWIDTH", "80")
            .env("LC_ALL", "C.UTF-8");
        let said = process::finish(&mut man, LIMIT)?;
        let name = path.display();
        if !said.status.success() || !said.stderr.trim().is_empty() {
            return Err(format!("{name}: {}", said.all()).into());
        }
        let sections = ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"];
        let missing = sections
            .iter()
            .find(|section| !said.stdout.contains(**section));
        if let Some(missing) = missing {
            return Err(format!("{name}: no {missing}: {}", said.stdout).into());
        }
    }
    // One of each command, and of each subcommand.
    let named = |name: &str| pages.iter().any(|page| page.file_name() == name);
    for name in [
        "sapwood.1",
        "sapwood-ls.1",
        "sapwood-subvolume-snapshot.1",
        "sapwood-xattr-get.1",
    ] {
        if !named(name) {
            return Err(format!("{name} is missing").into());
        }
    }
    let link = fs::read_to_string(dir.path().join("man8/mount.fuse.sapwood.8"))?;
    if link != ".so man1/sapwood-mount.1\n" {
        return Err(link.into());
    }
    Ok(())
}

const WIDTHS: [usize; 2] = [80, 60];
/// Commands that open no image.
const WITHOUT_IMAGE: [&str; 11] = [
    "mkdisk",
    "verity",
    "luks",
    "undo",
    "demo",
    "umount",
    "sync",
    "stats",
    "doctor",
    "mount-options",
    "mkfs-options",
];

/// Every command as words below `sapwood`, from the lists in help.
fn commands() -> Result<Vec<Vec<String>>, String> {
    let listed = |path: &[&str]| -> Result<Vec<String>, String> {
        let help = run(&[&["help"], path].concat())?;
        let rows = help.lines().skip_while(|line| !line.starts_with("Usage:"));
        let rows = rows.filter_map(|line| line.strip_prefix("  "));
        let names = rows.filter_map(|row| row.split_once("  "));
        let is_name = |name: &&str| {
            let letter = |char: char| char.is_ascii_lowercase() || char == '-';
            name.starts_with(|char: char| char.is_ascii_lowercase())
                && name.chars().all(letter)
                && *name != "help"
        };
        Ok(names
            .map(|(name, _)| name)
            .filter(is_name)
            .map(str::to_owned)
            .collect())
    };
    let mut all = vec![Vec::new()];
    for command in listed(&[])? {
        if ["subvolume", "xattr"].contains(&command.as_str()) {
            let below = listed(&[&command])?;
            all.extend(below.into_iter().map(|sub| vec![command.clone(), sub]));
        }
        all.push(vec![command]);
    }
    Ok(all)
}

fn help_pages() -> Outcome {
    let commands = commands()?;
    if commands.len() < 40 {
        return Err(format!("only these commands: {commands:?}").into());
    }
    for command in &commands {
        for width in WIDTHS {
            let mut help = Command::new(sapwood());
            help.arg("help")
                .args(command)
                .env("COLUMNS", width.to_string());
            let text = process::succeed(&mut help, LIMIT)?;
            reads_well(&text, width)
                .and_then(|()| has_its_options(&text, command))
                .map_err(|why| {
                    format!(
                        "help {} in {width} columns: {why}\n{text}",
                        command.join(" ")
                    )
                })?;
        }
    }
    Ok(())
}

/// No line is wider than the terminal, no column has a word in each line, and the usage names each
/// operand once.
fn reads_well(text: &str, width: usize) -> Result<(), String> {
    let mut lonely = 0;
    for line in text.lines() {
        if line.chars().count() > width {
            return Err(format!("a wide line: {line}"));
        }
        let indent = line.len() - line.trim_start().len();
        let one_word = indent > 8 && !line.trim().contains(' ');
        lonely = if one_word { lonely + 1 } else { 0 };
        if lonely > 2 {
            return Err(format!("one word a line: {line}"));
        }
    }
    let usage = text.lines().skip_while(|line| !line.starts_with("Usage:"));
    for line in usage.take_while(|line| !line.trim().is_empty()) {
        let mut operands: Vec<_> = line
            .split(' ')
            .filter(|word| word.starts_with('<'))
            .collect();
        let count = operands.len();
        operands.sort_unstable();
        operands.dedup_by_key(|word| word.trim_end_matches('.').to_owned());
        if operands.len() < count {
            return Err(format!("an operand twice: {line}"));
        }
    }
    Ok(())
}

/// Options of images are in the help of the commands that open one, and in no other.
fn has_its_options(text: &str, command: &[String]) -> Result<(), String> {
    let Some(name) = command.first() else {
        return Ok(());
    };
    let wanted = !WITHOUT_IMAGE.contains(&name.as_str());
    for option in ["--offset", "--length", "--image-format"] {
        if text.contains(option) != wanted {
            return Err(format!("{option}: {}", !wanted));
        }
    }
    let devices = wanted && !["mkfs", "resize"].contains(&name.as_str());
    if text.contains("--device ") != devices {
        return Err(format!("--device: {}", !devices));
    }
    let subvolume = ["IMAGE:PATH", "IMAGE[:PATH]", "[IMAGE:]PATH"];
    let named = subvolume.iter().any(|place| text.contains(place));
    if named && !(text.contains("--subvol ") && text.contains("--top-level")) {
        return Err("a path in an image, and no --subvol".to_owned());
    }
    Ok(())
}

/// Every option has a line of its own, also the options of `mount` and `mkfs`.
fn lists_of_man_pages() -> Outcome {
    let dir = scratch::directory();
    call(&["generate".as_ref(), "man".as_ref(), dir.path().as_os_str()])?;
    let pages = fs::read_dir(dir.path().join("man1"))?;
    for page in pages {
        let page = page?;
        let name = page.file_name().to_string_lossy().into_owned();
        for width in WIDTHS {
            let mut man = Command::new("man");
            man.args(["--warnings", "-l"])
                .arg(page.path())
                .env("MANWIDTH", width.to_string())
                .env("LC_ALL", "C.UTF-8");
            let said = process::finish(&mut man, LIMIT)?;
            let text = &said.stdout;
            let lists = match name.as_str() {
                "sapwood-mount.1" | "sapwood-mount-options.1" => {
                    &["ro", "commit=SECONDS", "subvol=PATH", "minixdf"][..]
                }
                "sapwood-mkfs-options.1" => &["--size SIZE"],
                "sapwood-mkdisk.1" => &["-p, --part <PARTITION>"],
                "sapwood-ln.1" => &["-s, --symbolic", "<NEW>"],
                "sapwood-cp.1" => &["<DESTINATION>", "-r, --recursive"],
                _ => &[],
            };
            // The text follows a short term on its line.
            let begins = |line: &str, term: &str| {
                let rest = line
                    .strip_prefix("       ")
                    .and_then(|line| line.strip_prefix(term));
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            };
            let term = |term: &&&str| !text.lines().any(|line| begins(line.trim_end(), term));
            let missing = lists.iter().find(term);
            if !said.stderr.trim().is_empty() || missing.is_some() {
                return Err(format!("{name}, {width}: {missing:?}: {}", said.all()).into());
            }
            reads_well(text, width).map_err(|why| format!("{name}, {width}: {why}\n{text}"))?;
        }
    }
    Ok(())
}

fn bash() -> Outcome {
    let script = r#"set -eu
        source <("$SAPWOOD" generate completions bash)
        complete -p sapwood | grep -q _sapwood
        COMP_WORDS=(sapwood subv); COMP_CWORD=1; _sapwood sapwood subv sapwood
        [ "${COMPREPLY[*]}" = subvolume ]
        COMP_WORDS=(sapwood ls --hum); COMP_CWORD=2; _sapwood sapwood --hum ls
        [ "${COMPREPLY[*]}" = --human-readable ]
        [ "$(complete -p sapwood | grep -c _sapwood_in_images)" = 1 ]
        "$SAPWOOD" generate completions zsh | grep -q '#compdef sapwood'
        "$SAPWOOD" generate completions fish | grep -q 'complete -c sapwood'"#;
    let mut command = Command::new("bash");
    command.args(["-c", script]).env("SAPWOOD", sapwood());
    process::succeed(&mut command, LIMIT)?;
    Ok(())
}

/// Words as readline breaks them at colons, and what each becomes.
fn paths_in_bash() -> Outcome {
    let script = r#"set -eu
        mkdir -p r/etc/app r/e r/.git r/"with space"; touch r/etc/hosts r/file
        "$SAPWOOD" mkfs -q --size 128M -r r a.img
        "$SAPWOOD" mkdisk -q d.img --part root:ext4:rootdir=r
        source <("$SAPWOOD" generate completions bash)
        becomes() {
            local wanted=$1; shift
            COMP_WORDS=("$SAPWOOD" "$@"); COMP_CWORD=$#
            _sapwood_in_images "$SAPWOOD" "${!#}" x
            [ "${COMPREPLY[*]-}" = "$wanted" ] || { echo "$*: ${COMPREPLY[*]-}, not $wanted"; exit 1; }
        }
        becomes '/e/ /etc/' ls a.img : /e
        becomes '/etc/app/ /etc/hosts' ls a.img : /etc/
        becomes 'e/ etc/ file with space/' ls a.img :
        becomes '/with space/' ls a.img : '/with\ s'
        becomes 'a.img:/file' cat '"a.img:/fi'
        becomes '/.git/' ls a.img : /.g
        becomes '/file' cp a.img : /etc/hosts d.img#1 : /f
        becomes '' ls a.img : /none
        becomes '' ls a.img : /none/x
        becomes '' ls gone.img : /
        becomes 'subvolume' subv
        becomes '--human-readable' ls --hum
        # An image in use, and a pipe, complete nothing, and soon.
        mkfifo pipe; becomes '' ls pipe : /
        "$SAPWOOD" complete a.img:/etc/h | grep -qx a.img:/etc/hosts"#;
    let dir = scratch::directory();
    let mut command = Command::new("bash");
    command
        .args(["-c", script])
        .current_dir(dir.path())
        .env("SAPWOOD", sapwood());
    process::succeed(&mut command, LIMIT)?;
    Ok(())
}

fn help_all() -> Outcome {
    let mut help = Command::new(sapwood());
    help.args(["help", "--all"]).env("COLUMNS", "80");
    let text = process::succeed(&mut help, LIMIT)?;
    for command in commands()?.iter().filter(|command| !command.is_empty()) {
        let usage = format!("Usage: sapwood {}", command.join(" "));
        let count = text.lines().filter(|line| {
            let rest = line.strip_prefix(&usage);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        });
        if count.count() == 0 {
            return Err(format!("no {usage}: {text}").into());
        }
    }
    for option in ["--offset <", "--image-format <", "--hash-device <"] {
        if text.matches(option).count() != 1 {
            return Err(format!("{option} is not there once: {text}").into());
        }
    }
    // A word that is no command, and both forms of the help of one.
    let said = process::finish(Command::new(sapwood()).args(["help", "lss"]), LIMIT)?;
    if said.status.code() != Some(2) || !said.stderr.contains("'ls'") {
        return Err(said.all().into());
    }
    if run(&["help", "subvolume", "list"])? != run(&["subvolume", "list", "--help"])? {
        return Err("the two forms of help differ".into());
    }
    Ok(())
}

/// The report agrees with its exit code and with what this process can open.
fn doctor() -> Outcome {
    let mut command = Command::new(sapwood());
    let said = process::finish(command.args(["doctor", "--json"]), LIMIT)?;
    let report: Value = serde_json::from_str(&said.stdout)?;
    let code = if report["mounts"] == true { 0 } else { 1 };
    let findings = report["findings"].as_array().ok_or("no findings")?;
    let device = findings.iter().find(|one| one["subject"] == "/dev/fuse");
    let opens = fs::File::options().read(true).write(true).open("/dev/fuse");
    let state = if opens.is_ok() { "works" } else { "fails" };
    if said.status.code() != Some(code) || device.is_none_or(|one| one["state"] != state) {
        return Err(said.all().into());
    }
    let text = process::finish(Command::new(sapwood()).arg("doctor"), LIMIT)?;
    if findings.iter().all(|one| {
        let found = one["found"].as_str().unwrap_or("?");
        text.stdout.contains(found)
    }) {
        Ok(())
    } else {
        Err(text.all().into())
    }
}

/// Names in the image: text, one with a quote, a line end and a backslash, one that is no text.
fn names() -> [Vec<u8>; 3] {
    [
        b"plain".to_vec(),
        b"a\"b\n\\c".to_vec(),
        b"x\xff\xfe".to_vec(),
    ]
}

fn json() -> Outcome {
    let dir = scratch::directory();
    let image = dir.path().join("a.img");
    for kind in ["btrfs", "ext4"] {
        let size = "--size=128M";
        run(&["mkfs", "-qf", "-t", kind, size, image.to_str().unwrap()])?;
        for name in names() {
            call(&["touch".as_ref(), &place(&image, &name)])?;
        }
        let plain = place(&image, b"plain");
        call(&[
            "xattr".as_ref(),
            "set".as_ref(),
            "user.k".as_ref(),
            "0xff00".as_ref(),
            &plain,
        ])?;
        one_kind(&image, kind).map_err(|why| format!("{kind}: {why}"))?;
    }
    Ok(())
}

/// Every list of one image.
fn one_kind(image: &Path, kind: &str) -> Result<(), String> {
    let whole = image.to_str().unwrap();
    let inside = format!("{whole}:");
    let fields = [
        "kind",
        "mode",
        "ino",
        "links",
        "uid",
        "gid",
        "size",
        "allocated",
        "mtime",
    ];
    for args in [
        &["ls", "-A", "--json", &inside][..],
        &["find", "--json", "--type", "f", &inside],
        &["tree", "--json", &inside],
        &["du", "-a", "--json", &inside],
        &["stat", "--json", &format!("{whole}:*")],
    ] {
        let list = array(args)?;
        for wanted in names() {
            let found = list.iter().find(|row| path_of(row).ends_with(&wanted));
            let found = found.ok_or_else(|| format!("{args:?}: {wanted:?} is not in {list:?}"))?;
            let text = found.get("path_bytes").is_none();
            if text != std::str::from_utf8(&wanted).is_ok() {
                return Err(format!("{args:?}: {found}"));
            }
            if let Some(missing) = fields.iter().find(|field| found.get(**field).is_none()) {
                return Err(format!("{args:?}: no {missing}: {found}"));
            }
        }
    }
    let values = array(&["xattr", "list", "--json", &format!("{whole}:plain")])?;
    let value = values
        .iter()
        .find(|row| row["name"] == "user.k")
        .ok_or("no user.k")?;
    if value["value"] != Value::Null || value["value_base64"] != "/wA=" {
        return Err(value.to_string());
    }
    let space = array(&["df", "--json", whole])?;
    if space[0]["kind"] != kind || space[0]["size"].as_u64() > Some(128 << 20) {
        return Err(format!("{space:?}"));
    }
    let info = value_of(&["info", "--json", whole])?;
    let check = value_of(&["check", "--json", whole])?;
    if info["kind"] != kind || check["clean"] != true || check["findings"] != Value::Array(vec![]) {
        return Err(format!("{info} {check}"));
    }
    if kind == "btrfs" {
        run(&["subvolume", "create", &format!("{whole}:sub")])?;
        let all = array(&["subvolume", "list", "--json", whole])?;
        if !all.iter().any(|one| one["path"] == "sub") {
            return Err(format!("{all:?}"));
        }
    }
    // An empty list is one too.
    if array(&["find", "--json", "--name", "none", &inside])?.is_empty() {
        Ok(())
    } else {
        Err("find found none".into())
    }
}

/// A place that is missing, before and after one that is listed, and an image that is missing.
fn failed_lists() -> Outcome {
    let dir = scratch::directory();
    let image = dir.path().join("a.img");
    let whole = image.to_str().unwrap();
    run(&["mkfs", "-qf", "--size=128M", whole])?;
    run(&["touch", &format!("{whole}:a"), &format!("{whole}:b")])?;
    run(&["xattr", "set", "user.k", "v", &format!("{whole}:a")])?;
    let [good, other, none, gone] = ["a.img:a", "a.img:b", "a.img:none", "gone.img"];
    let (several, whole) = ([good, none, other], [gone]);
    for (command, places) in [
        (&["ls"][..], &several[..]),
        (&["ls", "-R"], &several),
        (&["find"], &several),
        (&["du", "-a"], &several),
        (&["stat"], &several),
        (&["xattr", "list"], &several),
        (&["tree"], &[none]),
        (&["df"], &["a.img", gone]),
        (&["subvolume", "list"], &whole),
        (&["ls"], &[good, none]),
        (&["ls"], &[none, good]),
    ] {
        let mut list = Command::new(sapwood());
        list.args(command).arg("--json").args(places);
        let said = process::finish(list.current_dir(dir.path()), LIMIT)?;
        let parsed: Result<Value, _> = serde_json::from_str(&said.stdout);
        if said.status.success() || parsed.is_ok() {
            return Err(format!("{command:?} {places:?}: {}", said.all()).into());
        }
        let found = said.stdout.contains("\"a\"") || said.stdout.contains("\"/a\"");
        if places.contains(&good) && !found {
            return Err(format!("{command:?} {places:?} lists no a: {}", said.all()).into());
        }
    }
    Ok(())
}

fn place(image: &Path, name: &[u8]) -> OsString {
    let mut place = image.as_os_str().to_owned().into_vec();
    place.extend_from_slice(b":/");
    place.extend_from_slice(name);
    OsString::from_vec(place)
}

fn call(args: &[&OsStr]) -> Result<String, String> {
    process::succeed(Command::new(sapwood()).args(args), LIMIT)
}

fn run(args: &[&str]) -> Result<String, String> {
    process::succeed(Command::new(sapwood()).args(args), LIMIT)
}

fn value_of(args: &[&str]) -> Result<Value, String> {
    let text = run(args)?;
    serde_json::from_str(&text).map_err(|error| format!("{args:?}: {error}: {text}"))
}

fn array(args: &[&str]) -> Result<Vec<Value>, String> {
    match value_of(args)? {
        Value::Array(list) => Ok(list),
        other => Err(format!("{args:?}: no array: {other}")),
    }
}

/// The bytes of a row's path.
fn path_of(row: &Value) -> Vec<u8> {
    match row["path_bytes"].as_str() {
        Some(base64) => decode(base64),
        None => row["path"].as_str().unwrap_or_default().as_bytes().to_vec(),
    }
}

/// Base64, by its definition.
fn decode(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => u32::from(byte - b'A'),
        b'a'..=b'z' => u32::from(byte - b'a') + 26,
        b'0'..=b'9' => u32::from(byte - b'0') + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0, 0_u32);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        held = held << 6 | digit(byte);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    bytes
}
