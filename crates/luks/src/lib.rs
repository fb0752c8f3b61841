//! Encrypted volumes: LUKS2 read, written and made, LUKS1 read and written.
//!
//! A volume is encrypted with its *volume key*. Each *key slot* in the header holds the volume key,
//! encrypted with a key that is derived from a passphrase. A digest in the header verifies the
//! volume key.
//!
//! - [`Key`]: a passphrase or the content of a key file.
//! - [`open`]: a device that decrypts what it reads and encrypts what it writes.
//! - [`format()`]: a new LUKS2 volume.
//! - [`describe`]: the fields of a header, without a key.
//!
//! The cipher is AES in XTS mode. Every other cipher, authenticated encryption, a detached header,
//! and a volume whose re-encryption is under way are refused by name. Sources: "LUKS On-Disk Format
//! Specification" version 1.2.3, "LUKS2 On-Disk Format Specification" version 1.1.
//!
//! ```
//! use std::sync::Arc;
//! use sapwood_block::{Device, MemoryDevice};
//! use sapwood_luks::{Derivation, FormatOptions, Key};
//!
//! let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new(17 << 20));
//! let key = Key::new(b"correct horse battery staple".to_vec());
//! let options = FormatOptions {
//!     derivation: Derivation::Argon2id { passes: 1, kib: 1024, lanes: 1 },
//!     ..FormatOptions::default()
//! };
//! sapwood_luks::format(&*disk, &key, &options)?;
//! let volume = sapwood_luks::open(disk, &key)?;
//! volume.write_at(0, b"secret")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cipher;
mod derive;
mod device;
mod error;
mod format;
mod key;
mod layout;
mod luks1;
mod luks2;
mod metadata;
mod slot;
mod split;
mod volume;

pub use derive::Derivation;
pub use device::CryptDevice;
pub use error::{Error, Result};
pub use format::{FormatOptions, HEADER_SIZE, format};
pub use key::Key;
pub use slot::SlotDescription;
pub use volume::{Description, describe, is_luks, open};
