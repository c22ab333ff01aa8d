package check

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metric is what a page of metrics says of one beside its values.
type Metric struct {
	Name, Type, Help string
	// Labels are in the order of their names, without le and quantile.
	Labels []string
	// Buckets are the upper limits of a histogram, without the infinite one.
	Buckets []float64
}

// ParseMetrics reads a page in Prometheus' text format.
func ParseMetrics(page io.Reader) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return families, nil
}

// DescribeMetrics describes the metrics that have series, in the order of their names.
func DescribeMetrics(families []*dto.MetricFamily) []Metric {
	var list []Metric
	for _, f := range families {
		m := Metric{Name: f.GetName(), Type: strings.ToLower(f.GetType().String()), Help: f.GetHelp()}
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if at, found := slices.BinarySearch(m.Labels, l.GetName()); !found {
					m.Labels = slices.Insert(m.Labels, at, l.GetName())
				}
			}
		}
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			for _, b := range h.GetBucket() {
				if limit := b.GetUpperBound(); limit < maxLimit {
					m.Buckets = append(m.Buckets, limit)
				}
			}
		}
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// maxLimit is above all limits of buckets but the infinite one.
const maxLimit = 1e300

// String has a line for each thing:
//
//	counter kubeproxy_proxy_healthz_total{code}
//	  help [ALPHA] Cumulative proxy healthz HTTP status
//	  buckets 0.001 0.002
func (m Metric) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s{%s}\n  help %s\n", m.Type, m.Name, strings.Join(m.Labels, ","), strings.ReplaceAll(m.Help, "\n",
		" "))
	if m.Buckets != nil {
		b.WriteString("  buckets")
		for _, limit := range m.Buckets {
			fmt.Fprintf(&b, " %v", limit)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// ReadMetrics reads what String wrote, of several metrics. Lines with # are comments.
func ReadMetrics(r io.Reader) ([]Metric, error) {
	var list []Metric
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		word, rest, _ := strings.Cut(strings.TrimPrefix(line, "  "), " ")
		switch {
		case !strings.HasPrefix(line, "  "):
			name, labels, ok := strings.Cut(strings.TrimSuffix(rest, "}"), "{")
			if !ok {
				return nil, fmt.Errorf("no metric: %q", line)
			}
			m := Metric{Type: word, Name: name}
			if labels != "" {
				m.Labels = strings.Split(labels, ",")
			}
			list = append(list, m)
		case len(list) > 0 && word == "help":
			list[len(list)-1].Help = rest
		case len(list) > 0 && word == "buckets":
			for text := range strings.FieldsSeq(rest) {
				limit, err := strconv.ParseFloat(text, 64)
				if err != nil {
					return nil, fmt.Errorf("%q: %w", line, err)
				}
				list[len(list)-1].Buckets = append(list[len(list)-1].Buckets, limit)
			}
		default:
			return nil, fmt.Errorf("neither a metric nor a part of one: %q", line)
		}
	}
	return list, lines.Err()
}
