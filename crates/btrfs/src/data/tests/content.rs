//! The content of a file according to its items.

use super::*;

#[test]
fn a_file_is_compressed_as_its_property_says() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let text = b"again and again ".repeat(20_000);
    for (name, id) in [("zlib", 1), ("lzo", 2), ("zstd", 3)] {
        let file = create(&engine, name.as_bytes());
        let mode = sapwood_vfs::SetXattrMode::Any;
        let property = b"btrfs.compression";
        crate::xattr::set_property(&engine, &file, property, name.as_bytes(), mode).unwrap();
        write(&engine, &file, 0, &text);
        flush_complete(&engine, &file).unwrap();
        let stored = stored(&engine, &file, 131_072);
        assert_eq!((stored.compression, stored.ram_len), (id, 131_072));
        assert!(stored.disk_len < 20_000 && stored.disk_len.is_multiple_of(4096));
        assert_eq!(read(&engine, &file, 0, text.len()).unwrap(), text);
        assert_eq!(
            file.state.lock().nbytes,
            (text.len() as u64).next_multiple_of(4096)
        );
    }
    engine.commit(None).unwrap();
    let features = reopen(&gate).incompat;
    assert!(features.contains(Incompat::COMPRESS_LZO | Incompat::COMPRESS_ZSTD));
}

#[test]
fn small_files_stand_in_the_tree() {
    let gate = device(&MkfsOptions::default());
    let engine = open(&gate);
    let is_inline =
        |file: &Arc<Inode>| items::find(&engine, file, 0).unwrap().content == Content::Inline;
    let file = create(&engine, b"f");
    write(&engine, &file, 0, &[b'a'; 2048]);
    flush_complete(&engine, &file).unwrap();
    assert!(is_inline(&file));
    assert_eq!(file.state.lock().nbytes, 2048);
    write(&engine, &file, 100, b"more");
    flush_complete(&engine, &file).unwrap();
    assert!(is_inline(&file));
    write(&engine, &file, 2048, b"x");
    flush_complete(&engine, &file).unwrap();
    assert!(!is_inline(&file));
    assert_eq!(file.state.lock().nbytes, 4096);
    {
        let _io = file.io.write();
        super::super::truncate(&engine, &file, 10).unwrap();
    }
    write(&engine, &file, 0, b"y");
    flush_complete(&engine, &file).unwrap();
    assert!(is_inline(&file));
    // More after it: it becomes a sector like any other.
    write(&engine, &file, 100_000, b"z");
    flush_complete(&engine, &file).unwrap();
    assert!(!is_inline(&file));
    assert_eq!(read(&engine, &file, 0, 5).unwrap(), b"yaaaa");
    assert_eq!(file.state.lock().nbytes, 8192);
}
