use super::*;

fn read(program: &[u8]) -> Result<Pickle, PickleError> {
    Pickle::read(program)
}

fn int(program: &[u8]) -> PickleValue {
    read(program).unwrap().root
}

#[test]
fn plain_values() {
    assert_eq!(int(b"\x80\x02K\x07."), PickleValue::Int(7));
    assert_eq!(int(b"\x80\x02J\xff\xff\xff\xff."), PickleValue::Int(-1));
    assert_eq!(int(b"\x80\x02M\x01\x02."), PickleValue::Int(513));
    assert_eq!(int(b"\x80\x02G\x3f\xb9\x99\x99\x99\x99\x99\x9a."), PickleValue::Float(0.1));
    assert_eq!(int(b"\x80\x02\x8a\x00."), PickleValue::Int(0));
    assert_eq!(int(b"\x80\x02\x8a\x01\xff."), PickleValue::Int(-1));
    assert_eq!(int(b"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."), PickleValue::LongInt);
    assert_eq!(int(b"\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), PickleValue::Int(i64::MAX));
    assert_eq!(int(b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x02\xc3\xa9."), PickleValue::Text("é".into()));
}

#[test]
fn containers_and_the_memo() {
    // {"a": [1, 2], "b": the same list, later grown by 3}
    let pickle = read(b"\x80\x02}(X\x01\x00\x00\x00a]q\x00(K\x01K\x02eX\x01\x00\x00\x00bh\x00K\x03au.").unwrap();
    for name in ["a", "b"] {
        let list = pickle.item(&pickle.root, name).unwrap();
        assert_eq!(pickle.elements(list).unwrap(), [PickleValue::Int(1), PickleValue::Int(2), PickleValue::Int(3)]);
    }
    assert_eq!(pickle.item(&pickle.root, "c"), None);
}

#[test]
fn calls_are_recorded_and_never_made() {
    let pickle = read(b"\x80\x02cargparse\nNamespace\n)\x81}X\x01\x00\x00\x00xK\x05sb.").unwrap();
    let call = pickle.call(&pickle.root).unwrap();
    assert_eq!((call.module, call.name), ("argparse", "Namespace"));
    assert_eq!(pickle.item(call.state.as_ref().unwrap(), "x"), Some(&PickleValue::Int(5)));
    let pickle = read(b"\x80\x02ccollections\nOrderedDict\n)RX\x01\x00\x00\x00xK\x05s.").unwrap();
    assert_eq!(pickle.item(&pickle.root, "x"), Some(&PickleValue::Int(5)));
}

#[test]
fn errors_have_the_offset_of_the_instruction() {
    let error = |program: &[u8]| read(program).unwrap_err().to_string();
    let cases: &[(&[u8], &str)] = &[
        (b"\x80\x02cos\nsystem\n", "byte 2: expected a name that training checkpoints need, found os.system"),
        (
            b"\x80\x04\x8c\x02os\x8c\x06system\x93",
            "byte 14: expected a name that training checkpoints need, found os.system",
        ),
        (b"\x80\x02ios\nsystem\n", "byte 2: expected a name that training checkpoints need, found os.system"),
        (b"\x80\x02itorch\nSize\n", "byte 2: expected an instruction that reads data, found 0x69 ('i')"),
        (b"\x80\x01N.", "byte 0: expected protocol 2 to 5, found protocol 1"),
        (b"(lp0\n.", "byte 0: expected a pickle (first byte 0x80), found 0x28"),
        (b"", "byte 0: expected 1 more bytes, found 0"),
        (b"\x80\x02X\xff\xff\xff\xffabc", "byte 2: expected 4294967295 more bytes, found 3"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "byte 2: expected 18446744073709551615 more bytes, found 0"),
        (b"\x80\x02h\x00.", "byte 2: expected a value in the memo, found none under 0"),
        (b"\x80\x02R.", "byte 2: expected a value on the stack, found none"),
        (b"\x80\x02NNR.", "byte 4: expected a known name and a tuple of arguments, found something else"),
        (b"\x80\x02(0.", "byte 3: expected a value on the stack, found none"),
        (b"\x80\x02N(\x85.", "byte 4: expected 1 values on the stack, found fewer"),
        (b"\x80\x02}(Nu.", "byte 5: expected keys and values in pairs, found 1 values"),
        (b"\x80\x02NN.", "byte 4: expected one value at the end, found 2 values and 0 open marks"),
        (b"\x80\x02N.N", "byte 3: expected the end of the file, found 1 more bytes"),
        (b"\x80\x02N", "byte 3: expected 1 more bytes, found 0"),
        (
            b"\x80\x02X\x01\x00\x00\x00\xff.",
            "byte 2: expected a string in UTF-8, found invalid utf-8 sequence of 1 bytes from index 0",
        ),
    ];
    for (program, expected) in cases {
        assert_eq!(error(program), *expected, "{program:?}");
    }
}

#[test]
fn limits_hold() {
    let program = |body: &[u8], times: usize| [b"\x80\x02", body.repeat(times).as_slice()].concat();
    let error = |body: &[u8], times| read(&program(body, times)).unwrap_err().to_string();
    assert!(error(b"(", 2000).contains("at most 1000 open marks"));
    assert!(error(b"]", 2 << 20).contains("objects"));
    assert!(error(b"N0", 4 << 20).contains("instructions"));
    assert!(error(b"N", 17 << 20).contains("bytes"));
    // a million nested tuples cost no recursion, neither to build nor to drop
    let deep = [program(b"N", 1), b"\x85".repeat(1 << 19), b".".to_vec()].concat();
    read(&deep).unwrap();
    // a large tuple is not copied for each call of it: that would be some terabytes
    let large = [b"\x80\x02(", b"N".repeat(1 << 20).as_slice(), b"tq\x000cargparse\nNamespace\nq\x010"].concat();
    let calls = [large, b"h\x01h\x00R0".repeat(1 << 19), b"N.".to_vec()].concat();
    read(&calls).unwrap();
}
