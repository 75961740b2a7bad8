//! Tensors of a single number, of any numeric type.

use safetensors::Dtype;

use super::Safetensors;
use flux_base::error::{Error, Result};

impl Safetensors {
    /// Returns the only value of the tensor `name`, whatever its type and axes.
    ///
    /// Errors if the tensor is missing, does not have exactly one value, is not numeric, or is not finite.
    pub fn scalar(&self, name: &str) -> Result<f64> {
        self.read_scalar(name).map_err(|e| e.at_path(&self.path).hint("fetch the file again, or create it again"))
    }

    fn read_scalar(&self, name: &str) -> Result<f64> {
        let entry = self.entries.get(name).ok_or_else(|| self.missing(name))?;
        let count: usize = entry.shape.iter().product();
        if count != 1 {
            return Err(Error::new(format!("tensor `{name}` has {count} values, expected one")));
        }
        let slice = self.slice(entry);
        let bytes = slice.bytes();
        let value = match entry.dtype {
            Dtype::F64 => bytes.try_into().ok().map(f64::from_le_bytes),
            Dtype::I64 => bytes.try_into().ok().map(|bytes| i64::from_le_bytes(bytes) as f64),
            Dtype::U64 => bytes.try_into().ok().map(|bytes| u64::from_le_bytes(bytes) as f64),
            Dtype::I32 => bytes.try_into().ok().map(|bytes| i32::from_le_bytes(bytes).into()),
            Dtype::U32 => bytes.try_into().ok().map(|bytes| u32::from_le_bytes(bytes).into()),
            Dtype::I16 => bytes.try_into().ok().map(|bytes| i16::from_le_bytes(bytes).into()),
            Dtype::U16 => bytes.try_into().ok().map(|bytes| u16::from_le_bytes(bytes).into()),
            Dtype::I8 => bytes.try_into().ok().map(|bytes| i8::from_le_bytes(bytes).into()),
            Dtype::U8 => bytes.try_into().ok().map(|bytes| u8::from_le_bytes(bytes).into()),
            _ => self.tensor(name).ok().map(|view| view.to_f32()[0].into()),
        };
        let expected = "expected a number";
        let value =
            value.ok_or_else(|| Error::new(format!("tensor `{name}` has dtype {:?}, {expected}", entry.dtype)))?;
        match value.is_finite() {
            true => Ok(value),
            false => Err(Error::new(format!("tensor `{name}` is {value}, {expected}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    fn number(dtype: Dtype, bytes: &[u8], shape: &[usize]) -> Result<f64> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let view = TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
        safetensors::serialize_to_file([("n", view)], None, &path).unwrap();
        Safetensors::open(&path, "").unwrap().scalar("n")
    }

    #[test]
    fn numbers_of_every_type_are_read() {
        for (dtype, bytes) in [
            (Dtype::F64, &16.0f64.to_le_bytes()[..]),
            (Dtype::F32, &16.0f32.to_le_bytes()),
            (Dtype::F16, &[0x00, 0x4c]),
            (Dtype::BF16, &[0x80, 0x41]),
            (Dtype::I64, &16i64.to_le_bytes()),
            (Dtype::U64, &16u64.to_le_bytes()),
            (Dtype::I32, &16i32.to_le_bytes()),
            (Dtype::U32, &16u32.to_le_bytes()),
            (Dtype::I16, &16i16.to_le_bytes()),
            (Dtype::U16, &16u16.to_le_bytes()),
            (Dtype::I8, &[16]),
            (Dtype::U8, &[16]),
        ] {
            for shape in [&[][..], &[1], &[1, 1]] {
                assert_eq!(number(dtype, bytes, shape).unwrap(), 16.0, "{dtype:?} {shape:?}");
            }
        }
        assert_eq!(number(Dtype::I64, &(-3i64).to_le_bytes(), &[]).unwrap(), -3.0);
    }

    #[test]
    fn what_is_no_number_is_refused() {
        let refused = |dtype, bytes: &[u8], shape: &[usize], why: &str| {
            let error = number(dtype, bytes, shape).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("`n`") && error.contains("hint: "), "{error}");
        };
        refused(Dtype::F32, &[0; 8], &[2], "has 2 values, expected one");
        refused(Dtype::F32, &[], &[0], "has 0 values, expected one");
        refused(Dtype::BOOL, &[1], &[], "has dtype BOOL");
        refused(Dtype::F64, &f64::NAN.to_le_bytes(), &[], "is NaN");
        refused(Dtype::F16, &[0x00, 0x7c], &[], "is inf");
    }
}
