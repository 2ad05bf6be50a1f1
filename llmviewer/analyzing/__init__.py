"""`analyze()` with phases, advice and notes; disaggregated prefill and decode; disaggregated experts; one kernel."""
