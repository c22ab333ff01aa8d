// Package v20170312 stands in for the client of one cloud's networks, which flannel's backend for that cloud imports.
// The test clusters have no cloud, and the client's own module is many times as large as flannel. Each call fails.
package v20170312

import "errors"

var errNoCloud = errors.New("this flannel was built without the client of the cloud")

// Client is the client.
type Client struct{}

// NewClientWithSecretId fails.
func NewClientWithSecretId(_, _, _ string) (*Client, error) { return nil, errNoCloud }

// Filter selects route tables.
type Filter struct {
	Name   *string
	Values []*string
}

// Route is a route in a table.
type Route struct {
	RouteId                                      *uint64
	DestinationCidrBlock, GatewayType, GatewayId *string
	RouteType                                    *string
	Enabled                                      *bool
}

// RouteTable is a table of the cloud's.
type RouteTable struct {
	RouteTableId *string
	RouteSet     []*Route
}

// DescribeRouteTablesRequest asks for tables.
type DescribeRouteTablesRequest struct{ Filters []*Filter }

// NewDescribeRouteTablesRequest makes an empty request.
func NewDescribeRouteTablesRequest() *DescribeRouteTablesRequest {
	return new(DescribeRouteTablesRequest)
}

// DescribeRouteTablesResponse has the tables.
type DescribeRouteTablesResponse struct {
	Response *struct{ RouteTableSet []*RouteTable }
}

// DescribeRouteTables fails.
func (*Client) DescribeRouteTables(*DescribeRouteTablesRequest) (*DescribeRouteTablesResponse, error) {
	return nil, errNoCloud
}

// RoutesRequest names routes of a table.
type RoutesRequest struct {
	RouteTableId *string
	Routes       []*Route
}

// NewCreateRoutesRequest makes an empty request.
func NewCreateRoutesRequest() *RoutesRequest { return new(RoutesRequest) }

// NewDeleteRoutesRequest makes an empty request.
func NewDeleteRoutesRequest() *RoutesRequest { return new(RoutesRequest) }

// CreateRoutes fails.
func (*Client) CreateRoutes(*RoutesRequest) (*struct{}, error) { return nil, errNoCloud }

// DeleteRoutes fails.
func (*Client) DeleteRoutes(*RoutesRequest) (*struct{}, error) { return nil, errNoCloud }
