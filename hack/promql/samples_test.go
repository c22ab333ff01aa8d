package promql

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// listing has the labels of each metric name, as a query would use it.
type listing map[string][]string

// readListing reads docs/metrics.md, which is written from the code.
func readListing(t *testing.T) listing {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	l := listing{"up": nil, "process_resident_memory_bytes": nil, "process_cpu_seconds_total": nil}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, " | ")
		if len(cells) < 3 || !strings.HasPrefix(line, "| `") {
			continue
		}
		name := strings.Trim(cells[0], "| `")
		var of []string
		for word := range strings.SplitSeq(cells[2], ", ") {
			if word = strings.Trim(word, " `|\n"); word != "" {
				of = append(of, word)
			}
		}
		if cells[1] != "histogram" {
			l[name] = of
			continue
		}
		l[name+"_count"], l[name+"_sum"], l[name+"_bucket"] = of, of, append([]string{"le"}, of...)
	}
	if len(l) < 50 {
		t.Fatalf("only %d metrics", len(l))
	}
	return l
}

// samples is a storage of series in memory.
type samples struct {
	times  []time.Time
	series []series
}

type series struct {
	labels  labels.Labels
	samples []chunks.Sample
}

// sample is a value at a time.
type sample struct {
	t int64
	f float64
}

func (s sample) T() int64                      { return s.t }
func (s sample) F() float64                    { return s.f }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

// readScrapes reads the record, which has a series again only when it has changed.
func readScrapes(t *testing.T) samples {
	t.Helper()
	text, err := os.ReadFile("testdata/scrapes.txt")
	if err != nil {
		t.Fatal(err)
	}
	var d samples
	at := map[string]int{}
	now := int64(0)
	endScrape := func() {
		for i := range d.series {
			s := &d.series[i]
			if last := s.samples[len(s.samples)-1]; last.T() < now {
				s.samples = append(s.samples, sample{now, last.F()})
			}
		}
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		cut := strings.LastIndexByte(line, ' ')
		name, value := line[:cut], line[cut+1:]
		if name == "scrape" {
			endScrape()
			if now, err = strconv.ParseInt(value, 10, 64); err != nil {
				t.Fatal(err)
			}
			d.times = append(d.times, time.UnixMilli(now))
			continue
		}
		f, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		if _, known := at[name]; !known {
			at[name] = len(d.series)
			d.series = append(d.series, series{labels: target(t, name)})
		}
		s := &d.series[at[name]]
		s.samples = append(s.samples, sample{now, f})
	}
	endScrape()
	up := series{labels: target(t, "up")}
	for _, t := range d.times {
		up.samples = append(up.samples, sample{t.UnixMilli(), 1})
	}
	d.series = append(d.series, up)
	if len(d.times) < 5 || len(d.series) < 200 {
		t.Fatalf("%d scrapes of %d series", len(d.times), len(d.series))
	}
	return d
}

// target adds the labels of a scrape target to a metric.
func target(t *testing.T, name string) labels.Labels {
	t.Helper()
	l, err := parser.ParseMetric(name)
	if err != nil {
		t.Fatal(err)
	}
	b := labels.NewBuilder(l)
	b.Set("job", "nftproxy")
	if l.Get("instance") == "" {
		b.Set("instance", "node-1")
	}
	return b.Labels()
}

// Querier is part of storage.Queryable.
func (d samples) Querier(int64, int64) (storage.Querier, error) { return querier{d}, nil }

type querier struct{ samples }

// Select is part of storage.Querier.
func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints,
	matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{at: -1}
	for _, s := range q.series {
		matches := true
		for _, m := range matchers {
			matches = matches && m.Matches(s.labels.Get(m.Name))
		}
		if matches {
			set.list = append(set.list, storage.NewListSeries(s.labels, s.samples))
		}
	}
	return set
}

func (querier) LabelValues(context.Context, string, *storage.LabelHints,
	...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) LabelNames(context.Context, *storage.LabelHints,
	...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) Close() error { return nil }

type seriesSet struct {
	list []storage.Series
	at   int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.list) }
func (s *seriesSet) At() storage.Series                { return s.list[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }
