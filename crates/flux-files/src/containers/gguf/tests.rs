use super::*;
use crate::testing;

/// A GGUF file under construction: its parts in file order.
struct Builder {
    version: u32,
    values: Vec<u8>,
    value_count: u64,
    infos: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
    alignment: usize,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Builder {
    fn new() -> Self {
        Self {
            version: 3,
            values: Vec::new(),
            value_count: 0,
            infos: Vec::new(),
            tensor_count: 0,
            data: Vec::new(),
            alignment: 32,
        }
    }

    /// Adds a key with a value of type `type_id`.
    fn value(mut self, key: &str, type_id: u32, bytes: &[u8]) -> Self {
        self.values.extend([string(key), type_id.to_le_bytes().to_vec(), bytes.to_vec()].concat());
        self.value_count += 1;
        self
    }

    /// Adds a tensor; `axes` are innermost first.
    fn tensor(mut self, name: &str, axes: &[u64], type_id: u32, bytes: &[u8]) -> Self {
        let offset = self.data.len() as u64;
        self = self.info(name, axes, type_id, offset);
        self.data.extend(bytes);
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        self
    }

    fn info(mut self, name: &str, axes: &[u64], type_id: u32, offset: u64) -> Self {
        self.infos.extend(string(name));
        self.infos.extend((axes.len() as u32).to_le_bytes());
        axes.iter().for_each(|axis| self.infos.extend(axis.to_le_bytes()));
        self.infos.extend(type_id.to_le_bytes());
        self.infos.extend(offset.to_le_bytes());
        self.tensor_count += 1;
        self
    }

    fn bytes(self) -> Vec<u8> {
        let mut bytes = [
            MAGIC,
            &self.version.to_le_bytes(),
            &self.tensor_count.to_le_bytes(),
            &self.value_count.to_le_bytes(),
            &self.values,
            &self.infos,
        ]
        .concat();
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(self.data);
        bytes
    }

    fn open(self) -> Result<Gguf> {
        open(self.bytes())
    }
}

fn open(bytes: Vec<u8>) -> Result<Gguf> {
    Gguf::new(PathBuf::from("model.gguf"), Bytes::Embedded(bytes.leak()), "fetch it again")
}

#[track_caller]
fn refused<T>(result: Result<T>, words: &[&str]) {
    testing::refused(result, &[words, &["in: model.gguf", "hint: "]].concat());
}

/// A file with two tensors and a value of each kind.
fn whole() -> Builder {
    let words = [string("a b"), string("ü")].concat();
    let array = |kind: u32, count: u64, bytes: &[u8]| [&kind.to_le_bytes()[..], &count.to_le_bytes(), bytes].concat();
    let nested = array(9, 1, &array(5, 1, &7i32.to_le_bytes()));
    Builder::new()
        .value("count", 4, &9u32.to_le_bytes())
        .value("long", 10, &10u64.to_le_bytes())
        .value("negative", 5, &(-1i32).to_le_bytes())
        .value("base", 6, &1e6f32.to_le_bytes())
        .value("name", 8, &string("tiny"))
        .value("words", 9, &array(8, 2, &words))
        .value("types", 9, &array(5, 2, &[1i32.to_le_bytes(), (-3i32).to_le_bytes()].concat()))
        .value("nested", 9, &nested)
        .tensor("a", &[2, 3], 0, &[1; 24])
        .tensor("q", &[32, 2], 8, &[2; 68])
}

#[test]
fn values_and_tensors_are_read_by_name() {
    for version in [2, 3] {
        let file = Builder { version, ..whole() }.open().unwrap();
        assert_eq!((file.u32("count").unwrap(), file.u32("long").unwrap()), (9, 10));
        assert_eq!((file.f64("base").unwrap(), file.string("name").unwrap()), (1e6, "tiny"));
        assert_eq!(file.strings("words").unwrap(), ["a b", "ü"]);
        assert_eq!(file.i32s("types").unwrap(), [1, -3]);
        assert!(file.has("nested") && !file.has("none"));
        let a = file.tensor("a").unwrap();
        assert_eq!((a.shape(), a.format(), a.bytes()), (&[3, 2][..], Format::F32, &[1; 24][..]));
        let q = file.tensor("q").unwrap();
        assert_eq!((q.shape(), q.format(), q.bytes()), (&[2, 32][..], Format::Q8_0, &[2; 68][..]));
        refused(file.u32("negative"), &["`negative` is an integer, expected an unsigned 32-bit integer"]);
        refused(file.u32("none"), &["the file has no key `none`"]);
        refused(file.string("words"), &["`words` is an array of 2 elements, each a string, expected a string"]);
        refused(file.i32s("words"), &["expected an array of 32-bit integers"]);
        refused(file.tensor("none").map_err(|e| e.hint("")), &["tensor `none` is missing"]);
    }
}

#[test]
fn a_file_without_values_may_have_tensors() {
    let file = Builder::new().tensor("a", &[2], 30, &[1; 4]).open().unwrap();
    assert_eq!(file.names().collect::<Vec<_>>(), ["a"]);
}

#[test]
fn tensors_lie_at_multiples_of_the_alignment_that_the_file_says() {
    let aligned = |alignment: u32| {
        let file = Builder { alignment: alignment as usize, ..Builder::new() };
        file.value(ALIGNMENT, 4, &alignment.to_le_bytes()).tensor("a", &[1], 0, &[1; 4]).tensor("b", &[1], 0, &[2; 4])
    };
    assert_eq!(aligned(64).open().unwrap().tensor("b").unwrap().bytes(), [2; 4]);
    let uneven = |alignment: u32| Builder::new().value(ALIGNMENT, 4, &alignment.to_le_bytes()).open();
    refused(uneven(48), &["`general.alignment` is 48, expected a power of two"]);
    refused(uneven(0), &["`general.alignment` is 0"]);
    refused(Builder::new().value(ALIGNMENT, 8, &string("32")).open(), &["`general.alignment` is a string"]);
    refused(Builder::new().tensor("a", &[8], 0, &[1; 32]).info("b", &[1], 0, 8).open(), &["`b` does not begin"]);
}

#[test]
fn types_that_are_not_read_are_refused_by_name_when_they_are_asked_for() {
    let file = whole().info("x", &[256], 16, 0).info("y", &[256], 99, u64::MAX).open().unwrap();
    refused(file.tensor("x"), &["`x`", "IQ2_XXS", "Q8_0"]);
    refused(file.tensor("y"), &["tensor `y` has type number 99"]);
    assert_eq!(file.shape("x"), Some(&[256][..]));
}

#[test]
fn files_that_contradict_themselves_are_refused() {
    let broken = |file: Builder, words: &str| refused(file.open(), &["not a valid GGUF file", words]);
    broken(Builder { version: 1, ..whole() }, "version 1");
    broken(Builder { version: 3u32.swap_bytes(), ..whole() }, "big-endian");
    broken(Builder { value_count: u64::MAX, ..whole() }, "not a valid");
    broken(Builder { tensor_count: u64::MAX, ..whole() }, "not a valid");
    broken(whole().value("name", 7, &[1]), "`name` occurs");
    broken(whole().value("x", 13, &[1]), "unknown type 13");
    broken(whole().value("x", 8, &u64::MAX.to_le_bytes()), "ends before");
    broken(whole().value("x", 8, &[&2u64.to_le_bytes()[..], &[0xff, 0xff]].concat()), "not UTF-8");
    let endless = |kind: u32| [&kind.to_le_bytes()[..], &(u64::MAX / 2).to_le_bytes()].concat();
    broken(whole().value("x", 9, &endless(10)), "ends before");
    broken(whole().value("x", 9, &endless(8)), "key `x`");
    broken(whole().value("x", 9, &endless(9).repeat(9)), "4 deep");
    broken(whole().tensor("a", &[2], 0, &[1; 8]), "`a` occurs");
    broken(whole().info("x", &[], 0, 0), "0 axes");
    broken(whole().info("x", &[1; 5], 0, 0), "5 axes");
    broken(whole().info("x", &[u64::MAX, u64::MAX], 0, 0), "[18446744073709551615, 18446744073709551615]");
    broken(whole().info("x", &[1 << 62], 0, 0), "tensor `x`");
    broken(whole().info("x", &[64], 0, 0), "tensor `x` is at");
    broken(whole().info("x", &[2], 0, u64::MAX - 31), "tensor `x` ends");
    broken(whole().info("x", &[2], 0, 1 << 40), "tensor `x` is at");
    broken(whole().info("x", &[33, 32], 8, 0), "blocks of 32");
    refused(open(b"GGML".to_vec()), &["does not begin with `GGUF`"]);
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused() {
    let bytes = whole().bytes();
    // The last tensor need not be padded.
    let end = bytes.len() - (96 - 68);
    open(bytes[..end].to_vec()).unwrap();
    for len in 0..end {
        refused(open(bytes[..len].to_vec()), &["not a valid GGUF file"]);
    }
}

/// A damaged file either fails to open or has all its tensors within its bytes.
#[test]
fn bytes_that_are_changed_lead_to_no_panic() {
    let bytes = whole().bytes();
    let mut random = testing::Random(1);
    let mut random = |limit: usize| random.below(limit);
    let (mut opened, mut failed) = (0, 0);
    for _ in 0..10_000 {
        let mut changed = bytes.clone();
        for _ in 0..1 + random(3) {
            let place = random(changed.len());
            changed[place] = [0, 0xff, 0x80, random(256) as u8, changed[place] ^ 1 << random(8)][random(5)];
        }
        changed.truncate(changed.len() - random(20) * random(2));
        let path = PathBuf::from("model.gguf");
        match Gguf::new(path, Bytes::Embedded(changed.leak()), "") {
            Ok(file) => {
                opened += 1;
                for name in file.names() {
                    let _ = file.tensor(name).map(|view| view.to_f32());
                }
                for key in ["count", "base", "name", "words", "types", "nested"] {
                    let _ = (file.u32(key), file.f64(key), file.string(key), file.strings(key), file.i32s(key));
                }
            }
            Err(_) => failed += 1,
        }
    }
    assert!(opened > 1000 && failed > 1000, "{opened} opened, {failed} refused");
}
