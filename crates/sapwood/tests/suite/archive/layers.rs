//! Container images: layers, whiteouts, tags, platforms, and attacks on all of them.

use std::path::{Path, PathBuf};

use sapwood::{FileSystem, ImageBuilder, Kind};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType};

use super::{add, header, link};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// A layout that is put together in a directory.
struct Layout(tempfile::TempDir);

fn sha(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Layout {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("blobs/sha256")).unwrap();
        std::fs::write(
            dir.path().join("oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )
        .unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn blob(&self, media_type: &str, content: &[u8]) -> Value {
        let hex = sha(content);
        std::fs::write(self.path().join("blobs/sha256").join(&hex), content).unwrap();
        json!({ "mediaType": media_type, "digest": format!("sha256:{hex}"), "size": content.len() })
    }

    fn json(&self, media_type: &str, content: &Value) -> Value {
        self.blob(media_type, content.to_string().as_bytes())
    }

    fn manifest(&self, layers: &[Value]) -> Value {
        let config = self.json("application/vnd.oci.image.config.v1+json", &json!({}));
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers });
        self.json(MANIFEST, &manifest)
    }

    fn index(&self, manifests: &[Value]) {
        let index = json!({ "schemaVersion": 2, "manifests": manifests });
        std::fs::write(self.path().join("index.json"), index.to_string()).unwrap();
    }

    fn one(layers: &[Vec<u8>]) -> Self {
        let layout = Self::new();
        let layers: Vec<Value> = layers
            .iter()
            .map(|layer| layout.blob(LAYER, layer))
            .collect();
        layout.index(&[layout.manifest(&layers)]);
        layout
    }

    /// The layout as an archive.
    fn archive(&self) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        tar.append_dir_all(".", self.path()).unwrap();
        tar.into_inner().unwrap()
    }
}

fn files(files: &[(&str, &str)]) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for (name, content) in files {
        let kind = if name.ends_with('/') {
            EntryType::Directory
        } else {
            EntryType::Regular
        };
        add(
            &mut tar,
            name,
            header(kind, 0o755, content.len() as u64),
            content.as_bytes(),
        );
    }
    tar.into_inner().unwrap()
}

fn named(mut descriptor: Value, name: &str) -> Value {
    descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    descriptor
}

fn for_platform(mut descriptor: Value, os: &str, architecture: &str) -> Value {
    descriptor["platform"] = json!({ "os": os, "architecture": architecture });
    descriptor
}

fn each(path: &Path, test: impl Fn(&FileSystem)) {
    for kind in Kind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("disk.img");
        ImageBuilder::new(kind)
            .from_oci(path)
            .write_to(&image)
            .unwrap();
        let fs = sapwood::open(&image).unwrap();
        test(&fs);
        fs.close().unwrap();
        let options = sapwood::CheckOptions::default();
        let report = sapwood::check(&image, &options, &mut |_| {}).unwrap();
        assert!(report.findings.is_empty(), "{kind:?}: {report:?}");
    }
}

fn refused(path: &Path) -> String {
    let dir = tempfile::tempdir().unwrap();
    let built = ImageBuilder::ext4()
        .from_oci(path)
        .write_to(dir.path().join("disk.img"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    built.unwrap_err().to_string()
}

fn tree(fs: &FileSystem) -> Vec<String> {
    let names = fs
        .walk("/")
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string());
    let mut names: Vec<String> = names
        .map(|name| name.trim_start_matches('/').to_owned())
        .filter(|name| name != "lost+found")
        .collect();
    names.sort();
    names
}

fn layers() -> [Vec<u8>; 3] {
    let base = files(&[
        ("bin/", ""),
        ("bin/sh", "sh"),
        ("etc/", ""),
        ("etc/a", "1"),
        ("etc/b", "1"),
        ("var/", ""),
        ("var/cache/", ""),
        ("var/cache/x", "1"),
        ("var/cache/y/z", "1"),
        ("opt/", ""),
        ("opt/tool/", ""),
        ("opt/tool/file", "1"),
        ("gone/deep/f", "1"),
    ]);
    // A whiteout concerns lower layers only, whatever its position in its layer.
    let mut tar = Builder::new(Vec::new());
    let file = |size| header(EntryType::Regular, 0o644, size);
    add(&mut tar, "etc/b", file(1), b"2");
    add(&mut tar, "etc/.wh.b", file(0), b"");
    add(&mut tar, "etc/.wh.a", file(0), b"");
    add(&mut tar, "etc/.wh.never", file(0), b"");
    add(&mut tar, "none/.wh.never", file(0), b"");
    add(&mut tar, ".wh.gone", file(0), b"");
    add(&mut tar, "var/cache/new", file(1), b"2");
    add(&mut tar, "var/cache/.wh..wh..opq", file(0), b"");
    add(&mut tar, ".wh..wh.plnk", file(0), b"");
    add(&mut tar, "opt/tool", file(4), b"file");
    link(&mut tar, "bin/bash", EntryType::Link, "bin/sh");
    [base, tar.into_inner().unwrap(), files(&[("etc/a", "3")])]
}

#[test]
fn layers_are_applied_in_their_order_with_whiteouts() {
    let [base, second, third] = layers();
    let layout = Layout::new();
    let gzip = |content: &[u8]| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gzip, content).unwrap();
        gzip.finish().unwrap()
    };
    let zstd = zstd::encode_all(second.as_slice(), 3).unwrap();
    let layers = [
        layout.blob(&format!("{LAYER}+gzip"), &gzip(&base)),
        layout.blob(&format!("{LAYER}+zstd"), &zstd),
        layout.blob(LAYER, &third),
    ];
    layout.index(&[layout.manifest(&layers)]);
    let test = |fs: &FileSystem| {
        let expected = [
            "bin",
            "bin/bash",
            "bin/sh",
            "etc",
            "etc/a",
            "etc/b",
            "opt",
            "opt/tool",
            "var",
            "var/cache",
            "var/cache/new",
        ];
        assert_eq!(tree(fs), expected);
        assert_eq!(fs.read("etc/a").unwrap(), b"3");
        assert_eq!(fs.read("etc/b").unwrap(), b"2");
        assert_eq!(fs.read("opt/tool").unwrap(), b"file");
        assert_eq!(fs.metadata("bin/bash").unwrap().nlink(), 2);
        // A layer's changes of a directory do not change its time.
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        assert_eq!(fs.metadata("etc").unwrap().modified(), time);
    };
    each(layout.path(), test);
    let dir = tempfile::tempdir().unwrap();
    let archive = layout.archive();
    for (name, content) in [
        ("plain.tar", archive.clone()),
        ("gzip.tar.gz", gzip(&archive)),
    ] {
        std::fs::write(dir.path().join(name), content).unwrap();
        each(&dir.path().join(name), test);
    }
}

#[test]
fn an_archive_of_docker_save_is_read() {
    let [base, second, _] = layers();
    let config = json!({ "rootfs": { "diff_ids": [
        format!("sha256:{}", sha(&base)), format!("sha256:{}", sha(&second)),
    ] } });
    let save = |second: &[u8]| {
        let mut tar = Builder::new(Vec::new());
        let file = |size: usize| header(EntryType::Regular, 0o644, size as u64);
        add(&mut tar, "aa/layer.tar", file(base.len()), &base);
        add(&mut tar, "bb/real.tar", file(second.len()), second);
        link(
            &mut tar,
            "bb/layer.tar",
            EntryType::Symlink,
            "../bb/real.tar",
        );
        let config = config.to_string();
        add(
            &mut tar,
            "config.json",
            file(config.len()),
            config.as_bytes(),
        );
        let manifest = json!([{
            "Config": "config.json",
            "RepoTags": ["example/app:1.0"],
            "Layers": ["aa/layer.tar", "bb/layer.tar"],
        }]);
        let manifest = manifest.to_string();
        add(
            &mut tar,
            "manifest.json",
            file(manifest.len()),
            manifest.as_bytes(),
        );
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("app.tar"), tar.into_inner().unwrap()).unwrap();
        dir
    };
    let dir = save(&second);
    for name in ["app.tar", "app.tar:1.0", "app.tar:example/app:1.0"] {
        each(&dir.path().join(name), |fs| {
            assert_eq!(fs.read("etc/b").unwrap(), b"2")
        });
    }
    let error = refused(&dir.path().join("app.tar:2.0"));
    assert_eq!(
        error,
        "no image has the tag 2.0; there are: example/app:1.0"
    );
    let dir = save(&files(&[("etc/b", "evil")]));
    let error = refused(&dir.path().join("app.tar"));
    assert!(
        error.starts_with("bb/layer.tar: the content has another digest: sha256:"),
        "{error}"
    );
}

#[test]
fn the_image_of_the_tag_and_of_this_machine_is_chosen() {
    let layout = Layout::new();
    let image = |content: &str| layout.manifest(&[layout.blob(LAYER, &files(&[("f", content)]))]);
    let host = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let nested = json!({ "schemaVersion": 2, "manifests": [
        for_platform(image("foreign"), "linux", "mips"),
        for_platform(image("native"), "linux", host),
        for_platform(image("statement"), "unknown", "unknown"),
    ] });
    let nested = layout.json(INDEX, &nested);
    layout.index(&[named(nested, "multi"), named(image("one"), "example/app:1")]);
    let at = |tag: &str| PathBuf::from(format!("{}:{tag}", layout.path().display()));
    each(&at("multi"), |fs| {
        assert_eq!(fs.read("f").unwrap(), b"native")
    });
    for tag in ["1", "example/app:1"] {
        each(&at(tag), |fs| assert_eq!(fs.read("f").unwrap(), b"one"));
    }
    assert!(refused(layout.path()).contains("name one as FILE:TAG: example/app:1, multi"));
    assert!(refused(&at("2")).contains("no image has the tag 2; there are: example/app:1, multi"));
    layout.index(&[
        for_platform(image("a"), "linux", "mips"),
        for_platform(image("b"), "plan9", host),
    ]);
    let error = refused(layout.path());
    assert!(error.contains("index.json: no image is for linux/") && error.contains("linux/mips"));
}

#[test]
fn hostile_layouts_are_refused_by_the_name_of_the_blob() {
    let broken = |edit: &dyn Fn(&Layout)| {
        let layout = Layout::one(&[files(&[("f", "1")])]);
        edit(&layout);
        refused(layout.path())
    };
    let hex = "a".repeat(64);
    let digest = |text: &str| json!({ "mediaType": LAYER, "digest": text, "size": 5 });
    let check = |attack: &str, error: String, expected: &str| {
        assert!(error.contains(expected), "{attack}: {error}");
    };
    let layer = files(&[("f", "1")]);
    let name = format!("blobs/sha256/{}", sha(&layer));
    check(
        "a changed blob",
        broken(&|it| std::fs::write(it.path().join(&name), b"x").unwrap()),
        &name,
    );
    let mut other = layer.clone();
    other[600] ^= 1;
    let changed = broken(&|it| std::fs::write(it.path().join(&name), &other).unwrap());
    check(
        "a changed byte",
        changed,
        &format!("{name}: the content has another digest"),
    );
    let gone = broken(&|it| std::fs::remove_file(it.path().join(&name)).unwrap());
    check(
        "a missing blob",
        gone,
        &format!("{name}: is named, but is not there"),
    );
    for text in [
        "sha256:../../../../etc/passwd",
        "../../etc",
        "md5:00",
        &format!("sha256:{hex}/.."),
    ] {
        let error = broken(&|it| it.index(&[digest(text)]));
        check(
            "a path as a digest",
            error,
            &format!("index.json: {text} is no sha256"),
        );
        let error = broken(&|it| it.index(&[it.manifest(&[digest(text)])]));
        check("a path as a layer", error, &format!("{text} is no sha256"));
    }
    let wrong_size = broken(&|it| {
        let mut layer = it.blob(LAYER, &layer);
        layer["size"] = json!(7);
        it.index(&[it.manifest(&[layer])]);
    });
    check(
        "a wrong size",
        wrong_size,
        &format!("{name}: has {} bytes instead of 7", layer.len()),
    );
    let negative = broken(&|it| {
        let mut manifest = it.manifest(&[]);
        manifest["size"] = json!(-1);
        it.index(&[manifest]);
    });
    check("a negative size", negative, "index.json: invalid value");
    let text = broken(&|it| std::fs::write(it.path().join("index.json"), "{").unwrap());
    check("no JSON", text, "index.json: EOF");
    let huge =
        broken(&|it| std::fs::write(it.path().join("index.json"), vec![b' '; 5 << 20]).unwrap());
    check(
        "5 MiB of nothing",
        huge,
        "index.json: has 4194305 bytes; at most",
    );
    let neither = broken(&|it| it.index(&[it.json(MANIFEST, &json!({}))]));
    check("no manifest", neither, "is neither an index nor a manifest");
    let deep = broken(&|it| {
        let mut last = it.manifest(&[]);
        for _ in 0..20 {
            last = it.json(INDEX, &json!({ "schemaVersion": 2, "manifests": [last] }));
        }
        it.index(&[last]);
    });
    check(
        "indexes without end",
        deep,
        "indexes are nested more than 8 times",
    );
    let program = broken(&|it| it.index(&[it.manifest(&[it.blob("application/x-program", b"x")])]));
    check(
        "a layer that is no archive",
        program,
        "a layer of the type application/x-program",
    );
    for compression in ["", "+gzip", "+zstd"] {
        let media_type = format!("{LAYER}{compression}+encrypted");
        let error = broken(&|it| it.index(&[it.manifest(&[it.blob(&media_type, &layer)])]));
        let expected = format!("{name}: the layer is encrypted ({media_type})");
        check("an encrypted layer that is plain", error, &expected);
    }
    let many = broken(&|it| {
        let layers = vec![it.blob(LAYER, &layer); 1025];
        it.index(&[it.manifest(&layers)]);
    });
    let expected = "has 1025 layers; at most 1024 are read";
    check("one layer again and again", many, expected);
    let nested = "[".repeat(1 << 20);
    let nested = broken(&|it| std::fs::write(it.path().join("index.json"), &nested).unwrap());
    check("arrays without end", nested, "index.json: ");
    let empty = tempfile::tempdir().unwrap();
    check(
        "no layout",
        refused(empty.path()),
        "neither an OCI layout nor",
    );
    let loops = broken(&|it| {
        let path = it.path().join(&name);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&path, &path).unwrap();
    });
    check("a blob that is a loop of links", loops, &name);
}

#[test]
fn hostile_layers_are_refused_by_the_name_of_the_entry() {
    let base = files(&[("etc/", ""), ("etc/a", "1")]);
    let two = |second: Vec<u8>| refused(Layout::one(&[base.clone(), second]).path());
    for whiteout in ["etc/.wh.", "etc/.wh..", "etc/.wh...", ".wh..."] {
        let error = two(files(&[(whiteout, "")]));
        let expected = format!("{whiteout}: the whiteout names no file");
        assert!(
            error.starts_with("layer blobs/sha256/") && error.ends_with(&expected),
            "{error}"
        );
    }
    let mut up = Builder::new(Vec::new());
    let mut evil = header(EntryType::Regular, 0o600, 0);
    evil.as_old_mut().name[..11].copy_from_slice(b"../.wh.home");
    evil.set_cksum();
    up.append(&evil, &b""[..]).unwrap();
    let error = two(up.into_inner().unwrap());
    assert!(
        error.ends_with("../.wh.home: the name leads out of the archive"),
        "{error}"
    );
    let cut = files(&[("etc/b", "2")]);
    let error = two(cut[..600].to_vec());
    assert!(
        error.ends_with("etc/b: the archive ends within this entry"),
        "{error}"
    );

    // A whiteout through a link that leads out removes nothing outside of the image.
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("kept"), "safe").unwrap();
    let mut tar = Builder::new(Vec::new());
    link(
        &mut tar,
        "out",
        EntryType::Symlink,
        outside.path().to_str().unwrap(),
    );
    let layout = Layout::one(&[tar.into_inner().unwrap(), files(&[("out/.wh.kept", "")])]);
    each(layout.path(), |fs| {
        assert!(fs.symlink_metadata("out").unwrap().is_symlink())
    });
    assert_eq!(std::fs::read(outside.path().join("kept")).unwrap(), b"safe");
}
