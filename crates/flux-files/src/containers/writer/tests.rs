use super::*;
use crate::Format;
use crate::containers::container::Container;
use crate::containers::gguf::Gguf;
use ::safetensors::Dtype;
use std::collections::BTreeMap;

fn target(folder: &tempfile::TempDir, name: &str) -> TensorTarget {
    TensorTarget::new(&folder.path().join(name), false).unwrap()
}

#[test]
fn what_is_written_to_gguf_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let target = target(&folder, "a.gguf");
    let values = [
        ("n".to_string(), Value::U32(7)),
        ("f".to_string(), Value::F32(0.5)),
        ("b".to_string(), Value::Bool(true)),
        ("t".to_string(), Value::Text("käse".to_string())),
        ("ts".to_string(), Value::Texts(vec!["a".to_string(), String::new()])),
        ("is".to_string(), Value::Ints(vec![-1, 3])),
    ];
    let tensors = [
        ("q".to_string(), Format::Q8_0, vec![3, 32]),
        ("v".to_string(), Format::F32, vec![1]),
        ("h".to_string(), Format::Bf16, vec![2, 3]),
    ];
    let mut writer = gguf(&target, &values, &tensors).unwrap();
    writer.put("h", &[5; 12]).unwrap();
    writer.put("v", &1.5f32.to_le_bytes()).unwrap();
    writer.put("q", &[1; 102]).unwrap();
    let bytes = writer.commit().unwrap();
    assert_eq!(fs::metadata(target.path()).unwrap().len(), bytes);
    let file = Gguf::open(target.path(), "").unwrap();
    assert_eq!((file.u32("n").unwrap(), file.f64("f").unwrap(), file.string("t").unwrap()), (7, 0.5, "käse"));
    assert_eq!((file.strings("ts").unwrap(), file.i32s("is").unwrap()), (vec!["a", ""], vec![-1, 3]));
    assert_eq!((file.tensor("q").unwrap().format(), file.shape("q")), (Format::Q8_0, Some(&[3, 32][..])));
    assert_eq!(file.tensor("v").unwrap().to_f32(), [1.5]);
    assert_eq!(file.tensor("h").unwrap().bytes(), [5; 12]);
    let starts = ["q", "v", "h"].map(|name| file.tensor(name).unwrap().start() % 32);
    assert_eq!(starts, [0; 3]);
}

#[test]
fn what_is_written_to_safetensors_is_read_and_aligned() {
    let folder = tempfile::tempdir().unwrap();
    let target = target(&folder, "a.safetensors");
    let entry = |name: &str, dtype, shape: &[usize]| Entry { name: name.to_string(), dtype, shape: shape.to_vec() };
    let entries = [
        entry("a", Dtype::U8, &[3]),
        entry("b", Dtype::F32, &[]),
        entry("c", Dtype::BF16, &[1, 3]),
        entry("d", Dtype::F8_E4M3, &[2, 2]),
    ];
    let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    let mut writer = safetensors(&target, &metadata, &entries).unwrap();
    for (name, bytes) in [("a", &[1; 3][..]), ("b", &2f32.to_le_bytes()), ("c", &[0; 6]), ("d", &[0x38; 4])] {
        writer.put(name, bytes).unwrap();
    }
    writer.commit().unwrap();
    let Container::Safetensors(file) = Container::open(target.path(), "").unwrap() else { panic!("it is one") };
    assert_eq!(file.metadata()["format"], "pt");
    assert_eq!((file.tensor("b").unwrap().to_f32(), file.tensor("d").unwrap().to_f32()), (vec![2.0], vec![1.0; 4]));
    assert_eq!((file.tensor("b").unwrap().start() % 8, file.tensor("c").unwrap().start() % 2), (0, 0));
}

#[test]
fn a_file_that_is_not_completed_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let writer = gguf(&target(&folder, "a.gguf"), &[], &[("v".to_string(), Format::F32, vec![4])]).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    drop(writer);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn places_that_cannot_be_written_are_refused_before() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |path: &Path, keeps| TensorTarget::new(path, keeps).unwrap_err().to_string();
    assert!(refused(folder.path(), false).contains("not a file"));
    assert!(refused(&folder.path().join("none/a.gguf"), false).contains("mkdir"));
    let there = folder.path().join("there.gguf");
    fs::write(&there, "old").unwrap();
    assert!(refused(&there, true).contains("already exists"));
    let target = TensorTarget::new(&folder.path().join("new.gguf"), true).unwrap();
    let writer = gguf(&target, &[], &[]).unwrap();
    fs::write(target.path(), "meanwhile").unwrap();
    assert!(writer.commit().unwrap_err().to_string().contains("already exists"));
    assert_eq!(fs::read(target.path()).unwrap(), b"meanwhile");
}
