//! A container image with one compressed layer, as an archive of an OCI layout.
//!
//! Source: the OCI image specification 1.1, image layout, manifest and configuration.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::error::{Context, Error, Result};
use crate::program::output;

/// Writes the image whose layer is `gzip`, the compressed form of `tar`, to `archive`. Returns the
/// name of the layer in the archive.
///
/// # Errors
/// I/O errors of the medium, or `sha256sum` fails.
pub(crate) fn make(archive: &Path, tar: &Path, gzip: &Path) -> Result<String> {
    let out = BufWriter::with_capacity(1 << 20, File::create(archive).on(archive.display())?);
    let mut out = tar::Builder::new(out);
    let mut blob = |path: &Path, kind: &str| -> Result<Value> {
        let digest = digest(path)?;
        let mut file = File::open(path).on(path.display())?;
        let size = file.metadata()?.len();
        append(&mut out, &blob_name(&digest), size, &mut file).on(archive.display())?;
        Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": size}))
    };
    let layer = blob(gzip, "application/vnd.oci.image.layer.v1.tar+gzip")?;
    let config = written(
        archive,
        &json!({
            "architecture": "amd64",
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(tar)?)]},
        }),
    )?;
    let config = blob(config.path(), "application/vnd.oci.image.config.v1+json")?;
    let manifest = written(
        archive,
        &json!({"schemaVersion": 2, "config": config, "layers": [layer.clone()]}),
    )?;
    let manifest = blob(
        manifest.path(),
        "application/vnd.oci.image.manifest.v1+json",
    )?;
    for (name, text) in [
        ("oci-layout", json!({"imageLayoutVersion": "1.0.0"})),
        (
            "index.json",
            json!({"schemaVersion": 2, "manifests": [manifest]}),
        ),
    ] {
        let text = text.to_string();
        append(&mut out, name, text.len() as u64, &mut text.as_bytes()).on(archive.display())?;
    }
    out.into_inner()?.flush().on(archive.display())?;
    let name = layer["digest"].as_str().and_then(|it| it.split_once(':'));
    let (_, digest) = name.ok_or_else(|| Error::new("the layer has no digest"))?;
    Ok(blob_name(digest))
}

fn blob_name(digest: &str) -> String {
    format!("blobs/sha256/{digest}")
}

/// A temporary file with `value`, next to `archive`.
fn written(archive: &Path, value: &Value) -> Result<tempfile::NamedTempFile> {
    let dir = archive.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(value.to_string().as_bytes())?;
    Ok(file)
}

fn append(
    out: &mut tar::Builder<impl Write>,
    name: &str,
    size: u64,
    content: &mut dyn Read,
) -> io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(size);
    header.set_mode(0o644);
    out.append_data(&mut header, name, content)
}

/// The SHA-256 of a file, in hexadecimal.
fn digest(path: &Path) -> Result<String> {
    let line = output(Command::new("sha256sum").arg("--").arg(path))?;
    let digest = line.split_whitespace().next().unwrap_or_default();
    if digest.len() != 64 {
        return Err(Error::new(format!("sha256sum printed {line}")));
    }
    Ok(digest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::material::Source;

    #[test]
    fn the_layer_of_the_image_is_the_compressed_archive() {
        let medium = tempfile::tempdir().unwrap();
        let source = Source::new(medium.path(), 120).unwrap();
        let mut found = std::collections::BTreeMap::new();
        let mut archive = tar::Archive::new(File::open(&source.oci).unwrap());
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            found.insert(name, content);
        }
        assert_eq!(found.len(), 5);
        assert_eq!(found[&source.layer], std::fs::read(&source.gzip).unwrap());
        let value = |name: &str| serde_json::from_slice::<Value>(&found[name]).unwrap();
        let blob = |digest: &Value| value(&blob_name(&digest.as_str().unwrap()[7..]));
        let manifest = blob(&value("index.json")["manifests"][0]["digest"]);
        let layer = manifest["layers"][0]["digest"].as_str().unwrap();
        assert_eq!(blob_name(&layer[7..]), source.layer);
        let config = blob(&manifest["config"]["digest"]);
        let contents = format!("sha256:{}", digest(&source.tar).unwrap());
        assert_eq!(config["rootfs"]["diff_ids"][0], contents);
    }
}
