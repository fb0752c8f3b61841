//! The choice of a layout's image, and its layers.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::OnceLock;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::digest::Digest;
use super::store::{Store, safe_name};
use super::{Layer, OciError, Result, document};
use crate::shown;

/// Most indexes from `index.json` to a manifest.
const NESTED: usize = 8;

/// Most layers of an image. Docker and overlayfs have at most some hundreds.
const LAYERS_MAX: usize = 1024;
/// Most names of images or platforms in an error.
const LISTED: usize = 20;

const INDEX: &str = "index.json";
const DOCKER: &str = "manifest.json";

/// The image that was chosen.
pub(super) struct Chosen {
    /// From the lowest one.
    pub(super) layers: Vec<Layer>,
}

/// An index has manifests, a manifest has layers.
#[derive(Deserialize)]
struct Document {
    manifests: Option<Vec<Descriptor>>,
    layers: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: Option<String>,
    digest: String,
    size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: HashMap<String, String>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

/// An image in the `manifest.json` of docker save.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Config {
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

/// Chooses the image of a tag, or the only one. From an image for several platforms, it chooses the
/// one for this machine.
///
/// # Errors
/// [`OciError`].
pub(super) fn choose(store: &Store, path: &Path, tag: Option<&str>) -> Result<Chosen> {
    if store.has(INDEX) {
        return in_index(store, tag);
    }
    if store.has(DOCKER) {
        saved(store, tag)
    } else {
        Err(OciError::NoImage(path.to_owned()))
    }
}

fn parse<T: DeserializeOwned>(content: &[u8], blob: &str) -> Result<T> {
    serde_json::from_slice(content).map_err(|source| OciError::Json {
        blob: blob.to_owned(),
        source,
    })
}

fn in_index(store: &Store, tag: Option<&str>) -> Result<Chosen> {
    let mut blob = INDEX.to_owned();
    let mut found: Document = parse(&document(store, INDEX, None)?, INDEX)?;
    for depth in 0..=NESTED {
        let manifests = match found {
            Document {
                layers: Some(layers),
                manifests: None,
            } => return layers_of(&layers, &blob),
            Document {
                manifests: Some(manifests),
                layers: None,
            } => manifests,
            _ => return Err(OciError::Document { blob }),
        };
        let chosen = match depth {
            0 => tagged(&manifests, tag, &blob)?,
            _ => for_platform(&manifests.iter().collect::<Vec<_>>(), &blob)?,
        };
        let (name, stored) = blob_of(chosen, &blob)?;
        found = parse(&document(store, &name, Some(&stored))?, &name)?;
        blob = name;
    }
    Err(OciError::Nested {
        blob,
        limit: NESTED,
    })
}

/// Name, digest and size of the blob that a descriptor in `blob` describes.
fn blob_of(descriptor: &Descriptor, blob: &str) -> Result<(String, (Digest, u64))> {
    let digest = Digest::parse(&descriptor.digest, blob)?;
    let name = format!("blobs/{}/{}", digest.algorithm(), digest.hex());
    Ok((name, (digest, descriptor.size)))
}

fn check_layers(count: usize, blob: &str) -> Result<()> {
    if count > LAYERS_MAX {
        Err(OciError::TooManyLayers {
            blob: blob.to_owned(),
            count,
            limit: LAYERS_MAX,
        })
    } else {
        Ok(())
    }
}

/// Names in an error.
fn listed<T: AsRef<str>>(names: impl ExactSizeIterator<Item = T>) -> String {
    let more = names.len().saturating_sub(LISTED);
    let names = names
        .take(LISTED)
        .map(|name| shown::name(name.as_ref().as_bytes()));
    let mut text = names.collect::<Vec<_>>().join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

fn layers_of(layers: &[Descriptor], blob: &str) -> Result<Chosen> {
    check_layers(layers.len(), blob)?;
    let layer = |descriptor: &Descriptor| {
        let (name, stored) = blob_of(descriptor, blob)?;
        let media_type = descriptor.media_type.as_deref().unwrap_or("tar");
        if media_type.ends_with("+encrypted") {
            return Err(OciError::Encrypted {
                blob: name,
                media_type: shown::name(media_type.as_bytes()),
            });
        }
        if !media_type.contains("tar") {
            return Err(OciError::MediaType {
                blob: name,
                media_type: shown::name(media_type.as_bytes()),
            });
        }
        Ok(Layer {
            name,
            stored: Some(stored),
            content: None,
            kept: OnceLock::new(),
        })
    };
    let layers = layers.iter().map(layer).collect::<Result<_>>()?;
    Ok(Chosen { layers })
}

impl Descriptor {
    /// Names under which the image is known, the short one first.
    fn names(&self) -> impl Iterator<Item = &str> {
        const KEYS: [&str; 2] = [
            "org.opencontainers.image.ref.name",
            "io.containerd.image.name",
        ];
        let names = KEYS.iter().filter_map(|key| self.annotations.get(*key));
        names.map(String::as_str)
    }

    /// A statement about an image, which tools store next to it.
    fn is_attestation(&self) -> bool {
        let unknown = self
            .platform
            .as_ref()
            .is_some_and(|platform| platform.os == "unknown");
        unknown || self.annotations.contains_key("vnd.docker.reference.type")
    }

    fn fits(&self) -> bool {
        let platform = self.platform.as_ref();
        platform.is_some_and(|platform| {
            platform.os == "linux" && platform.architecture == architecture()
        })
    }
}

/// The specification's name for the processors of this machine.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// Whether `tag` means the image `name`: it is the whole name, or the part after its last colon.
fn means(tag: &str, name: &str) -> bool {
    name == tag
        || name.rsplit_once(':').is_some_and(|(_, last)| last == tag)
        || name
            .strip_suffix(tag)
            .is_some_and(|rest| rest.ends_with('/'))
}

fn tagged<'d>(
    manifests: &'d [Descriptor],
    tag: Option<&str>,
    blob: &str,
) -> Result<&'d Descriptor> {
    let all: Vec<&Descriptor> = manifests.iter().collect();
    let names: BTreeSet<&str> = all.iter().filter_map(|one| one.names().next()).collect();
    let Some(tag) = tag else {
        if names.len() > 1 {
            let available = listed(names.iter());
            return Err(OciError::Several { available });
        }
        return for_platform(&all, blob);
    };
    let has = |one: &&Descriptor| one.names().any(|name| means(tag, name));
    let found: Vec<&Descriptor> = all.into_iter().filter(has).collect();
    if found.is_empty() {
        Err(OciError::NoTag {
            tag: shown::name(tag.as_bytes()),
            available: listed(names.iter()),
        })
    } else {
        for_platform(&found, blob)
    }
}

/// The image for this machine. If there is only one image, its platform does not matter.
fn for_platform<'d>(manifests: &[&'d Descriptor], blob: &str) -> Result<&'d Descriptor> {
    let images: Vec<&Descriptor> = manifests
        .iter()
        .filter(|one| !one.is_attestation())
        .copied()
        .collect();
    if let [only] = images.as_slice() {
        return Ok(only);
    }
    let found = images.iter().find(|one| one.fits()).copied();
    found.ok_or_else(|| {
        let platforms = images.iter().map(|one| match &one.platform {
            Some(platform) => format!("{}/{}", platform.os, platform.architecture),
            None => "one of an unnamed platform".to_owned(),
        });
        let available: BTreeSet<String> = platforms.collect();
        OciError::Platform {
            blob: blob.to_owned(),
            wanted: format!("linux/{}", architecture()),
            available: if available.is_empty() {
                "none".to_owned()
            } else {
                listed(available.iter())
            },
        }
    })
}

/// The image of an archive of docker save before version 25, which has no `index.json`.
fn saved(store: &Store, tag: Option<&str>) -> Result<Chosen> {
    let images: Vec<Saved> = parse(&document(store, DOCKER, None)?, DOCKER)?;
    let tags = images
        .iter()
        .flat_map(|image| image.repo_tags.iter().flatten());
    let available = listed(tags.collect::<Vec<_>>().iter());
    let chosen = match (tag, images.as_slice()) {
        (None, [only]) => only,
        (None, []) => return Err(OciError::NoImage(DOCKER.into())),
        (None, _) => return Err(OciError::Several { available }),
        (Some(tag), all) => {
            let has = |image: &&Saved| {
                let mut tags = image.repo_tags.iter().flatten();
                tags.any(|name| means(tag, name))
            };
            all.iter().find(has).ok_or_else(|| OciError::NoTag {
                tag: shown::name(tag.as_bytes()),
                available,
            })?
        }
    };
    check_layers(chosen.layers.len(), DOCKER)?;
    let config = safe_name(&chosen.config, DOCKER)?;
    let parsed: Config = parse(&document(store, &config, None)?, &config)?;
    let ids = parsed.rootfs.diff_ids;
    if ids.len() != chosen.layers.len() {
        return Err(OciError::Layers {
            blob: config,
            expected: chosen.layers.len(),
            found: ids.len(),
        });
    }
    let layer = |(name, id): (&String, &String)| {
        Ok(Layer {
            name: safe_name(name, DOCKER)?,
            stored: None,
            content: Some(Digest::parse(id, &config)?),
            kept: OnceLock::new(),
        })
    };
    let layers = chosen.layers.iter().zip(&ids).map(layer);
    let layers = layers.collect::<Result<_>>()?;
    Ok(Chosen { layers })
}
