use super::*;
use crate::formats::format::Format;
use crate::testing::Random;

/// A dictionary with `weight` [2, 3] and `bias` [3] in `params`, and a step. Written by PyTorch 2.15.
const ZIP: &[u8] = include_bytes!("tests/two.pth");
const LEGACY: &[u8] = include_bytes!("tests/two.legacy.pth");

fn read(bytes: &[u8]) -> Result<Pickle> {
    Pickle::new(PathBuf::from("x.pth"), Bytes::Owned(bytes.to_vec()))
}

fn why(bytes: &[u8]) -> String {
    read(bytes).err().expect("the file is refused").to_string()
}

/// Returns a stream whose object is this pickle.
fn stream(program: &[u8]) -> Vec<u8> {
    let mut magic = vec![0x80, 2, 0x8a, 10];
    magic.extend(LEGACY_MAGIC);
    magic.extend(b".\x80\x02M\xe9\x03.\x80\x02}.\x80\x02");
    [&magic[..], program, b".\x80\x02]."].concat()
}

#[test]
fn both_forms_hold_the_same_tensors() {
    for bytes in [ZIP, LEGACY] {
        assert!(is_pickled(bytes));
        let file = read(bytes).unwrap();
        let mut names: Vec<_> = file.names().collect();
        names.sort_unstable();
        assert_eq!(names, ["params.bias", "params.weight"]);
        let (weight, bias) = (file.tensor("params.weight").unwrap(), file.tensor("params.bias").unwrap());
        assert_eq!((weight.format(), weight.shape()), (Format::F32, &[2, 3][..]));
        assert_eq!(weight.to_f32(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!((bias.format(), bias.to_f32()), (Format::F16, vec![0.5, 1.5, 2.5]));
    }
}

#[test]
fn functions_and_opcodes_that_are_not_allowed_are_named() {
    for (program, words) in [
        (&b"cos\nsystem\nX\x02\0\0\0ls\x85R"[..], "`os.system`"),
        (b"\x8c\x08builtins\x8c\x04eval\x93", "`builtins.eval`"),
        (b"ctorch._utils\n_rebuild_tensor\n", "`torch._utils._rebuild_tensor`"),
        (b"i", "0x69"),
        (b"ccollections\nOrderedDict\n)\x81", "0x81"),
        (b"}q\0h\0", "two places"),
        (b"}}X\x01\0\0\0b}sb", "attributes other than `_metadata`"),
        (b"X\xff\xff\xff\x7f", "2147483647 bytes"),
        (b"N)Q", "something else than a storage"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R", "unknown form"),
        (b"ccollections\nOrderedDict\nN\x85R", "other arguments"),
        (b"}", "no tensors"),
        (b"N", "does not contain a dictionary"),
        (b"", "damaged"),
        (b"(((t", "does not contain"),
    ] {
        assert!(why(&stream(program)).contains(words), "{words}: {}", why(&stream(program)));
    }
}

#[test]
fn shared_and_nested_values_take_no_time() {
    let mut doubled = b")q\0".to_vec();
    (0..100).for_each(|_| doubled.extend(b"h\0h\0\x86q\0"));
    assert!(why(&stream(&doubled)).contains("nested too deeply"));
    let mut nested = vec![b')'];
    nested.extend(vec![0x85; 1 << 20]);
    assert!(why(&stream(&nested)).contains("nested too deeply"));
    let mut lists = Vec::new();
    (0..100).for_each(|_| lists.push(b']'));
    (0..99).for_each(|_| lists.push(b'a'));
    assert!(why(&stream(&lists)).contains("nested too deeply"));
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused() {
    for bytes in [ZIP, LEGACY] {
        for end in 0..bytes.len() {
            // A shorter archive has no directory, and a shorter stream no storage.
            assert!(read(&bytes[..end]).is_err(), "{end} of {}", bytes.len());
        }
    }
}

/// Changes up to four bytes of both forms, or copies, removes or repeats a part. Any result is fine, except a panic.
#[test]
fn damaged_files_are_errors_or_tensors() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut random = |limit: usize| random.below(limit);
    let mut read_well = 0;
    for case in 0..100_000 {
        let mut bytes = if case % 2 == 0 { ZIP.to_vec() } else { LEGACY.to_vec() };
        for _ in 0..1 + random(4) {
            if bytes.is_empty() {
                break;
            }
            let (at, other) = (random(bytes.len()), random(bytes.len()));
            match random(6) {
                0 => drop(bytes.drain(at..(at + random(9)).min(bytes.len()))),
                1 => {
                    let part = bytes[other..(other + random(40)).min(bytes.len())].to_vec();
                    drop(bytes.splice(at..at, part));
                }
                2 => bytes.truncate(at.max(1)),
                3 => bytes[at] = [0, 0xff, 0x7f, 0x80][random(4)],
                _ => bytes[at] = random(256) as u8,
            }
        }
        if let Ok(file) = read(&bytes) {
            read_well += 1;
            file.names().for_each(|name| drop(file.tensor(name).unwrap().to_f32()));
        }
    }
    assert!((1000..90_000).contains(&read_well), "{read_well} were read");
}
