use serde_json::json;

use super::*;

fn device() -> Device {
    let device = json!({"name": "gpu-0", "allowMultipleAllocations": true,
        "attributes": {
            "type": {"string": "gpu"}, "index": {"int": 3}, "ecc": {"bool": true},
            "driverVersion": {"version": "570.86.15"},
            "resource.kubernetes.io/numaNode": {"int": 1},
            "links": {"strings": ["a", "b"]}},
        "capacity": {"memory": {"value": "46068Mi"}, "other.example/cores": {"value": "1500m"}}});
    serde_json::from_value(device).unwrap()
}

fn evaluate(expression: &str) -> Result<bool, String> {
    CompiledExpressions::default().evaluate(expression, "gpu.example.com", &device())
}

#[test]
fn reads_a_device_as_the_api_server_does() {
    for expression in [
        "device.driver == 'gpu.example.com'",
        "device.allowMultipleAllocations",
        "device.attributes['gpu.example.com'].type == 'gpu'",
        "device.attributes[device.driver]['index'] == 3",
        "device.attributes['gpu.example.com'].ecc",
        "device.attributes['resource.kubernetes.io'].numaNode in [0, 1]",
        "!has(device.attributes['elsewhere.example'].type)",
        "has(device.attributes['gpu.example.com'].type)",
        "'gpu.example.com' in device.attributes && !('elsewhere.example' in device.attributes)",
        "device.attributes['gpu.example.com'].links.exists(one, one == 'b')",
        "device.attributes['gpu.example.com'].links.includes('a')",
        "device.attributes['gpu.example.com'].type.includes('gpu')",
        "device.attributes['gpu.example.com'].type.lowerAscii().startsWith('g')",
        "device.attributes['gpu.example.com'].type.matches('^g.u$')",
        "cel.bind(gpu, device.attributes['gpu.example.com'], gpu.ecc && gpu.index > 2)",
        "device.attributes['gpu.example.com'].driverVersion.isGreaterThan(semver('570.0.0'))",
        "device.attributes['gpu.example.com'].driverVersion.compareTo(semver('570.86.15')) == 0",
        "device.attributes['gpu.example.com'].driverVersion == semver('570.86.15')",
        "device.attributes['gpu.example.com'].driverVersion.major() == 570",
        "semver('v01.2', true) == semver('1.2.0') && !isSemver('1.2') && isSemver('1.2', true)",
        "device.capacity['gpu.example.com'].memory.compareTo(quantity('46068Mi')) == 0",
        "device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('40Gi'))",
        "device.capacity['gpu.example.com'].memory == quantity('48305799168')",
        "device.capacity['other.example'].cores.isLessThan(quantity('2'))",
        "!device.capacity['other.example'].cores.isInteger()",
        "device.capacity['other.example'].cores.asApproximateFloat() == 1.5",
        "quantity('1k').add(quantity('24')).asInteger() == 1024 && quantity('1').sub(1).asInteger() == 0",
        "sign(quantity('-1')) == -1 && isQuantity('1Gi') && !isQuantity('1GiB')",
    ] {
        assert_eq!(evaluate(expression), Ok(true), "{expression}");
    }
}

#[test]
fn an_expression_without_a_truth_value_is_an_error() {
    for expression in [
        "device.attributes['gpu.example.com'].missing == 'a'",
        "device.attributes['gpu.example.com'].type",
        "device.capacity['gpu.example.com'].memory > 3",
        "device.unheard",
        "unheard(device)",
        "device.driver ==",
        "quantity('much').isInteger()",
    ] {
        assert!(evaluate(expression).is_err(), "{expression}");
    }
}
