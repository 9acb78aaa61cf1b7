"""The probe of an inference server: small requests over its own HTTP API, findings, a profile.

Every probe is one file with one `async def probe_...(asker, report)`. It asks through `Asker` (bounded in
number and time, never raises), adds findings and problems to the `Report`, and takes nonsense for a finding.

    report = await examine(Asker("http://127.0.0.1:8000/v1"))
    report.profile   -> "vllm"
"""
