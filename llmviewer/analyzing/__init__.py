"""The whole answer to one question: `analyze()`, its phases, advice and notes; prefill and decode apart; one kernel."""
