//! Every declared option on each kind of file system, and every option of the manual pages.

use super::table::{self, Effect, Form, MountOption};
use super::*;

/// Options in `btrfs(5)`, in `ext4(5)` (with ext2 and ext3), and the independent ones in
/// `mount(8)`.
const OF_BTRFS: &str = "acl noacl autodefrag noautodefrag barrier nobarrier check_int \
    check_int_data check_int_print_mask clear_cache commit compress compress-force datacow \
    nodatacow datasum nodatasum degraded device discard nodiscard enospc_debug noenospc_debug \
    fatal_errors flushoncommit noflushoncommit fragment nologreplay max_inline metadata_ratio \
    norecovery rescan_uuid_tree rescue skip_balance space_cache nospace_cache ssd ssd_spread \
    nossd nossd_spread subvol subvolid thread_pool treelog notreelog usebackuproot \
    user_subvol_rm_allowed recovery inode_cache noinode_cache noatime";
const OF_EXT4: &str = "acl noacl bsddf minixdf check nocheck debug errors grpid bsdgroups nogrpid \
    sysvgroups grpquota noquota quota usrquota nouid32 oldalloc orlov resgid resuid sb user_xattr \
    nouser_xattr journal_dev journal_path norecovery noload data data_err barrier nobarrier commit \
    jqfmt usrjquota grpjquota journal_checksum nojournal_checksum journal_async_commit \
    inode_readahead_blks stripe delalloc nodelalloc max_batch_time min_batch_time journal_ioprio \
    abort auto_da_alloc noauto_da_alloc noinit_itable init_itable discard nodiscard block_validity \
    noblock_validity dioread_lock dioread_nolock max_dir_size_kb i_version nombcache prjquota";
const GENERIC: &str = "async atime noatime auto noauto context fscontext defcontext rootcontext \
    defaults dev nodev diratime nodiratime dirsync exec noexec group iversion noiversion mand \
    nomand _netdev nofail relatime norelatime strictatime nostrictatime lazytime nolazytime suid \
    nosuid silent loud owner remount ro rw sync user nouser users nosymfollow X-mount.mkdir \
    x-systemd.automount";

/// Whether an option of this kind can be given for an image of `kind`.
fn fits(option: &MountOption, kind: Kind) -> bool {
    option.of.is_none_or(|of| of == kind)
}

#[test]
fn every_option_of_the_manual_pages_is_declared() {
    for (names, kind) in [
        (OF_BTRFS, Some(Kind::Btrfs)),
        (OF_EXT4, Some(Kind::Ext4)),
        (GENERIC, None),
    ] {
        for name in names.split_whitespace() {
            let option = table::find(name).unwrap_or_else(|| panic!("{name} is missing"));
            let kinds = kind.map_or(vec![Kind::Btrfs, Kind::Ext4], |kind| vec![kind]);
            for kind in kinds {
                assert!(fits(option, kind), "{name} is not one of {kind}");
            }
        }
    }
}

#[test]
fn every_name_is_declared_once_and_says_why() {
    let mut names: Vec<&str> = table::all()
        .flat_map(|option| option.names)
        .copied()
        .collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    for option in table::all() {
        assert!(!option.names.is_empty(), "{option:?}");
        assert!(
            option.text.len() > 5 && !option.text.ends_with('.'),
            "{option:?}"
        );
    }
}

/// Values that fit a placeholder.
fn samples(placeholder: &str) -> Vec<String> {
    if placeholder.starts_with(|first: char| first.is_ascii_uppercase()) {
        let value = match placeholder {
            "BYTES" => "64k",
            "HEX" => "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
            "PATH" | "NAME" | "TEXT" | "TYPE" | "LABEL" | "DEVICE" => "word",
            _ => "7",
        };
        return vec![value.to_owned()];
    }
    let choices = placeholder.split('|');
    choices
        .map(|choice| choice.replace(":LEVEL", ":3").replace(['[', ']'], ""))
        .collect()
}

/// Every way in which an option can be given by `name`.
fn ways(option: &MountOption, name: &str) -> Vec<(String, Option<String>)> {
    let name = name.replace('*', "word");
    let alone = || vec![(name.clone(), None)];
    let valued = |placeholder| {
        let samples = samples(placeholder).into_iter();
        samples
            .map(|value| (name.clone(), Some(value)))
            .collect::<Vec<_>>()
    };
    match option.form {
        Form::Alone => alone(),
        Form::Value(placeholder) => valued(placeholder),
        Form::Optional(placeholder) => [alone(), valued(placeholder)].concat(),
    }
}

/// Values of served options that are still refused, as their texts state.
const REFUSED_VALUES: &[(&str, &str)] = &[
    ("barrier", "0"),
    ("errors", "continue"),
    ("errors", "panic"),
    ("fatal_errors", "panic"),
];

#[test]
fn every_option_is_what_its_declaration_says() {
    for option in table::all() {
        for name in option.names {
            for (name, value) in ways(option, name) {
                let mut options = Options::default();
                let taken = options.take(&name, value.as_deref());
                let only_root = name == "nosymfollow" && !rustix::process::geteuid().is_root();
                let refused = value
                    .as_deref()
                    .is_some_and(|value| REFUSED_VALUES.contains(&(&name, value)));
                match option.effect {
                    Effect::Refused => {
                        let why = option.text;
                        let given = value.map_or(name.clone(), |value| format!("{name}={value}"));
                        let expected = OptionError::Unsupported { option: given, why };
                        assert_eq!(taken, Err(expected));
                        continue;
                    }
                    Effect::Served(_) if refused || only_root => {
                        assert!(
                            matches!(taken, Err(OptionError::Unsupported { .. })),
                            "{name}"
                        );
                        continue;
                    }
                    _ => assert_eq!(taken, Ok(()), "{name} {value:?}"),
                }
                let fitting = |kind| match kind {
                    Kind::Btrfs => options.for_btrfs().map(drop),
                    Kind::Ext4 => options.for_ext4().map(drop),
                };
                for kind in [Kind::Btrfs, Kind::Ext4] {
                    assert_eq!(
                        fitting(kind).is_ok(),
                        fits(option, kind),
                        "{name} on {kind}"
                    );
                }
                if matches!(option.effect, Effect::Accepted) {
                    options.given.clear();
                    assert_eq!(options, Options::default(), "{name} has an effect");
                }
            }
        }
    }
}

#[test]
fn a_value_has_the_declared_form() {
    for option in table::all() {
        let Some(name) = option.names.first().map(|name| name.replace('*', "word")) else {
            continue;
        };
        let given = |value| Options::default().take(&name, value);
        match option.form {
            Form::Alone => assert!(
                matches!(given(Some("1")), Err(OptionError::BadValue { .. })),
                "{name}"
            ),
            Form::Value(_) => assert_eq!(given(None), Err(OptionError::NoValue(name.clone()))),
            Form::Optional(_) => {}
        }
    }
    let unknown = OptionError::Unknown("nosuchoption".to_owned());
    assert_eq!(Options::default().take("nosuchoption", None), Err(unknown));
}

#[test]
fn the_last_of_two_opposites_counts() {
    let parsed = |list: &str| {
        let mut options = Options::default();
        options.set_list(list).unwrap();
        options.given.clear();
        options
    };
    for (on, off) in [
        ("ro", "rw"),
        ("discard", "nodiscard"),
        ("noatime", "atime"),
        ("noatime", "relatime"),
        ("strictatime", "nostrictatime"),
        ("nodiratime", "diratime"),
        ("lazytime", "nolazytime"),
        ("sync", "async"),
        ("noexec", "exec"),
        ("no_default_permissions", "default_permissions"),
        ("writeback_cache", "no_writeback_cache"),
        ("nodatacow", "datasum"),
        ("nodatasum", "datasum"),
        ("notreelog", "treelog"),
        ("compress=zstd", "compress=no"),
        ("minixdf", "bsddf"),
    ] {
        let both = format!("{on},{off}");
        assert_eq!(parsed(&both), Options::default(), "{both}");
        // These are root's.
        let root = rustix::process::geteuid().is_root();
        if root || !["strictatime", "nodiratime", "lazytime"].contains(&on) {
            assert_ne!(parsed(on), Options::default(), "{on}");
        }
    }
    let parsed = |list: &str| parsed(list).for_btrfs().unwrap();
    let both = parsed("nodatacow,datacow");
    assert!(!both.nodatacow && both.nodatasum);
}

#[test]
fn the_page_about_mount_options_is_current() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mount-options.md");
    let found = std::fs::read_to_string(page).unwrap_or_default();
    assert!(
        found == table::as_markdown(),
        "run `sapwood mount-options --markdown >docs/mount-options.md`"
    );
}

#[test]
fn texts_for_people_name_every_option() {
    let (page, text, summary) = (table::as_markdown(), table::as_text(), table::summary());
    for option in table::all() {
        for name in option.names {
            assert!(page.contains(name) && text.contains(name), "{name}");
        }
        // `[=...]` stands for the values of the option before.
        let short = format!(
            " {}[=...]",
            option.names.first().copied().unwrap_or_default()
        );
        let served = matches!(option.effect, Effect::Served(_));
        let named = summary.contains(&option.usage()) || summary.contains(&short);
        assert!(named || !served, "{option:?}");
    }
}
