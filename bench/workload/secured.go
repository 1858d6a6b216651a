package workload

// W15: the same with TLS.
func secured(s Settings) Family {
	keys := s.Size(keySpace)
	cpu := Gate{Metric: CPU, Limit: 5}
	group := func(security Security) Group {
		what := func(name string) string { return security.String() + ": " + name }
		return Group{Security: security, Fill: filled(keys, 256), Cells: []Cell{
			putTraffic(8, 64, keys, 256).cell(s, what("put 256 B"), "put", cpu),
			getTraffic(8, 64, keys, false).cell(s, what("linearizable get"), "get", cpu),
			stockPutTraffic(8, 64, keys, 256).cell(s, what("put 256 B"), "put", cpu).long(),
			stockGetTraffic(8, 64, keys, false).cell(s, what("linearizable get"), "get", cpu).long(),
		}}
	}
	crowd := fan{watchers: s.Size(1000), perStream: min(10, s.Size(1000)), size: 1024, rate: 20}.cell(s)
	lists := largeValues(s, TLS)
	lists.Cells = append(lists.Cells, crowd, watchUnderReads(s, s.Size(1000)))
	for i := range lists.Cells {
		lists.Cells[i].Name = "TLS: " + lists.Cells[i].Name
	}
	return Family{ID: "W15", Title: "TLS", Groups: []Group{group(TLS), lists, group(MutualTLS)}}
}
