"""The Danube wire as a table: every message, enum and method of the packages we serve.

Written from the contract, not from ``proto/``: a slip in one of them fails the test that compares
both. Fields are ``name=number:type``; ``[]`` is repeated, ``?`` has presence, ``(group)`` belongs
to a oneof.
"""

from __future__ import annotations

API_MESSAGES = {
    "ProducerRequest": "request_id=1:u64 producer_name=2:str topic_name=3:str "
    "schema_ref=4:SchemaReference producer_access_mode=5:ProducerAccessMode "
    "dispatch_strategy=6:DispatchStrategy",
    "SchemaReference": "subject=1:str use_latest=2:bool(version_ref) "
    "pinned_version=3:u32(version_ref) min_version=4:u32(version_ref)",
    "ProducerResponse": "request_id=1:u64 producer_id=2:u64 producer_name=3:str",
    "MessageResponse": "request_id=1:u64",
    "ConsumerRequest": "request_id=1:u64 topic_name=2:str consumer_name=3:str subscription=4:str "
    "subscription_type=5:ConsumerRequest.SubscriptionType key_filters=6:[]str",
    "ConsumerResponse": "request_id=1:u64 consumer_id=2:u64 consumer_name=3:str",
    "ReceiveRequest": "request_id=1:u64 consumer_id=2:u64",
    "StreamMessage": "request_id=1:u64 msg_id=2:MsgID payload=3:bytes publish_time=4:u64 "
    "producer_name=5:str subscription_name=6:str attributes=7:map<str,str> schema_id=8:u64? "
    "schema_version=9:u32? routing_key=10:str?",
    "MsgID": "producer_id=1:u64 topic_name=2:str broker_addr=3:str topic_offset=5:u64",
    "AckRequest": "request_id=1:u64 msg_id=2:MsgID subscription_name=3:str",
    "AckResponse": "request_id=1:u64",
    "NackRequest": "request_id=1:u64 msg_id=2:MsgID subscription_name=3:str delay_ms=4:u64? "
    "reason=5:str?",
    "NackResponse": "request_id=1:u64",
    "TopicLookupRequest": "request_id=1:u64 topic=2:str",
    "TopicLookupResponse": "request_id=3:u64 response_type=4:TopicLookupResponse.LookupType "
    "connect_url=5:str broker_url=6:str proxy=7:bool",
    "TopicPartitionsResponse": "request_id=1:u64 partitions=2:[]str",
    "HealthCheckRequest": "request_id=1:u64 client=2:HealthCheckRequest.ClientType id=3:u64",
    "HealthCheckResponse": "status=1:HealthCheckResponse.ClientStatus",
    "ListSegmentDescriptorsRequest": "topic=1:str after_offset=2:u64",
    "ListSegmentDescriptorsResponse": "segments=1:[]SegmentDescriptorProto",
    "SegmentDescriptorProto": "segment_id=1:str start_offset=2:u64 end_offset=3:u64 size=4:u64 "
    "etag=5:str created_at=6:u64",
}

API_ENUMS = {
    "ProducerAccessMode": "Shared=0 Exclusive=1",
    "DispatchStrategy": "NonReliable=0 Reliable=1",
    "ConsumerRequest.SubscriptionType": "Exclusive=0 Shared=1 Failover=2 KeyShared=3",
    "TopicLookupResponse.LookupType": "Redirect=0 Connect=1 Failed=2",
    "HealthCheckRequest.ClientType": "Producer=0 Consumer=1",
    "HealthCheckResponse.ClientStatus": "OK=0 CLOSE=1",
}

API_METHODS = [
    "ProducerService/CreateProducer ProducerRequest -> ProducerResponse",
    "ProducerService/SendMessage StreamMessage -> MessageResponse",
    "ConsumerService/Subscribe ConsumerRequest -> ConsumerResponse",
    "ConsumerService/ReceiveMessages ReceiveRequest -> stream StreamMessage",
    "ConsumerService/Ack AckRequest -> AckResponse",
    "ConsumerService/Nack NackRequest -> NackResponse",
    "Discovery/TopicLookup TopicLookupRequest -> TopicLookupResponse",
    "Discovery/TopicPartitions TopicLookupRequest -> TopicPartitionsResponse",
    "HealthCheck/HealthCheck HealthCheckRequest -> HealthCheckResponse",
    "StorageService/ListSegmentDescriptors ListSegmentDescriptorsRequest -> "
    "ListSegmentDescriptorsResponse",
]

_DONE = "success=1:bool message=2:str"

SCHEMA_MESSAGES = {
    "RegisterSchemaRequest": "subject=1:str schema_type=2:str schema_definition=3:bytes "
    "description=4:str created_by=5:str tags=6:[]str",
    "RegisterSchemaResponse": "schema_id=1:u64 version=2:u32 is_new_version=3:bool "
    "fingerprint=4:str",
    "GetSchemaRequest": "schema_id=1:u64 version=2:u32?",
    "GetSchemaResponse": "schema_id=1:u64 version=2:u32 subject=3:str schema_type=4:str "
    "schema_definition=5:bytes description=6:str created_at=7:u64 created_by=8:str tags=9:[]str "
    "fingerprint=10:str compatibility_mode=11:str",
    "GetLatestSchemaRequest": "subject=1:str",
    "ListVersionsRequest": "subject=1:str",
    "ListVersionsResponse": "versions=1:[]SchemaVersionInfo",
    "SchemaVersionInfo": "version=1:u32 created_at=2:u64 created_by=3:str description=4:str "
    "fingerprint=5:str schema_id=6:u64",
    "CheckCompatibilityRequest": "subject=1:str new_schema_definition=2:bytes schema_type=3:str "
    "compatibility_mode=4:str?",
    "CheckCompatibilityResponse": "is_compatible=1:bool errors=2:[]str",
    "DeleteSchemaVersionRequest": "subject=1:str version=2:u32",
    "SetCompatibilityModeRequest": "subject=1:str compatibility_mode=2:str",
    "ConfigureTopicSchemaRequest": "topic_name=1:str schema_subject=2:str validation_policy=3:str "
    "enable_payload_validation=4:bool",
    "UpdateTopicValidationPolicyRequest": "topic_name=1:str validation_policy=2:str "
    "enable_payload_validation=3:bool",
    "DeleteSchemaVersionResponse": _DONE,
    "SetCompatibilityModeResponse": _DONE,
    "ConfigureTopicSchemaResponse": _DONE,
    "UpdateTopicValidationPolicyResponse": _DONE,
    "GetTopicSchemaConfigRequest": "topic_name=1:str",
    "GetTopicSchemaConfigResponse": "schema_subject=1:str validation_policy=2:str "
    "enable_payload_validation=3:bool schema_id=4:u64",
    "ListSubjectsRequest": "",
    "ListSubjectsResponse": "subjects=1:[]SubjectSummary",
    "SubjectSummary": "subject=1:str schema_type=2:str latest_version=3:u32 "
    "compatibility_mode=4:str schema_id=5:u64 tags=6:[]str",
}

SCHEMA_METHODS = [
    "SchemaRegistry/RegisterSchema RegisterSchemaRequest -> RegisterSchemaResponse",
    "SchemaRegistry/GetSchema GetSchemaRequest -> GetSchemaResponse",
    "SchemaRegistry/GetLatestSchema GetLatestSchemaRequest -> GetSchemaResponse",
    "SchemaRegistry/ListVersions ListVersionsRequest -> ListVersionsResponse",
    "SchemaRegistry/CheckCompatibility CheckCompatibilityRequest -> CheckCompatibilityResponse",
    "SchemaRegistry/DeleteSchemaVersion DeleteSchemaVersionRequest -> DeleteSchemaVersionResponse",
    "SchemaRegistry/SetCompatibilityMode SetCompatibilityModeRequest -> "
    "SetCompatibilityModeResponse",
    "SchemaRegistry/ConfigureTopicSchema ConfigureTopicSchemaRequest -> "
    "ConfigureTopicSchemaResponse",
    "SchemaRegistry/UpdateTopicValidationPolicy UpdateTopicValidationPolicyRequest -> "
    "UpdateTopicValidationPolicyResponse",
    "SchemaRegistry/GetTopicSchemaConfig GetTopicSchemaConfigRequest -> "
    "GetTopicSchemaConfigResponse",
    "SchemaRegistry/ListSubjects ListSubjectsRequest -> ListSubjectsResponse",
]

_NAME = "name=1:str"
_OK = "success=1:bool"
_TOPIC_SUBSCRIPTION = "topic=1:str subscription=2:str"
_BINDING_KEY = "scope=1:str resource_name=2:str binding_id=3:str"

ADMIN_MESSAGES = {
    "Empty": "",
    "NamespaceRequest": _NAME,
    "TopicRequest": _NAME,
    "DescribeTopicRequest": _NAME,
    "NamespaceResponse": _OK,
    "TopicResponse": _OK,
    "SubscriptionResponse": _OK,
    "ActivateBrokerResponse": _OK,
    "CreateRoleResponse": _OK,
    "DeleteRoleResponse": _OK,
    "CreateBindingResponse": _OK,
    "DeleteBindingResponse": _OK,
    "NewTopicRequest": "name=1:str schema_subject=2:str? dispatch_strategy=3:DispatchStrategy",
    "PartitionedTopicRequest": "base_name=1:str partitions=2:u32 schema_subject=3:str? "
    "dispatch_strategy=4:DispatchStrategy",
    "SubscriptionRequest": _TOPIC_SUBSCRIPTION,
    "GetSubscriptionFailurePolicyRequest": _TOPIC_SUBSCRIPTION,
    "GetSubscriptionDispatchConfigRequest": _TOPIC_SUBSCRIPTION,
    "SubscriptionFailurePolicy": "max_redelivery_count=1:u32 ack_timeout_ms=2:u64 "
    "base_redelivery_delay_ms=3:u64 max_redelivery_delay_ms=4:u64 "
    "backoff_strategy=5:SubscriptionBackoffStrategy dead_letter_topic=6:str? "
    "poison_policy=7:SubscriptionPoisonPolicy",
    "SetSubscriptionFailurePolicyRequest": f"{_TOPIC_SUBSCRIPTION} "
    "failure_policy=3:SubscriptionFailurePolicy",
    "GetSubscriptionFailurePolicyResponse": "failure_policy=1:SubscriptionFailurePolicy? "
    "subscription_type=2:i32",
    "SubscriptionDispatchConfig": "max_unacked_messages=1:u32",
    "SetSubscriptionDispatchConfigRequest": f"{_TOPIC_SUBSCRIPTION} "
    "dispatch_config=3:SubscriptionDispatchConfig",
    "GetSubscriptionDispatchConfigResponse": "dispatch_config=1:SubscriptionDispatchConfig?",
    "BrokerListResponse": "brokers=1:[]BrokerInfo",
    "BrokerInfo": "broker_id=1:str broker_addr=2:str broker_role=3:str admin_addr=4:str "
    "metrics_addr=5:str broker_status=6:str",
    "BrokerResponse": "leader=1:str",
    "NamespaceListResponse": "namespaces=1:[]str",
    "TopicListResponse": "topics=1:[]str",
    "SubscriptionListResponse": "subscriptions=1:[]str",
    "TopicInfo": "name=1:str broker_id=2:str delivery=3:str",
    "TopicInfoListResponse": "topics=1:[]TopicInfo",
    "BrokerRequest": "broker_id=1:str",
    "PolicyResponse": "policies=1:str",
    "DescribeTopicResponse": "name=1:str subscriptions=2:[]str broker_id=3:str delivery=4:str "
    "schema_subject=5:str? schema_id=6:u64? schema_version=7:u32? schema_type=8:str? "
    "compatibility_mode=9:str?",
    "UnloadBrokerRequest": "broker_id=1:str max_parallel=2:u32 namespaces_include=3:[]str "
    "namespaces_exclude=4:[]str dry_run=5:bool timeout_seconds=6:u32",
    "UnloadBrokerResponse": "started=1:bool total=2:u32 succeeded=3:u32 failed=4:u32 "
    "pending=5:u32 failed_topics=6:[]str",
    "ActivateBrokerRequest": "broker_id=1:str reason=2:str",
    "ClusterBalanceRequest": "",
    "ClusterBalanceResponse": "coefficient_of_variation=1:f64 mean_load=2:f64 max_load=3:f64 "
    "min_load=4:f64 std_deviation=5:f64 broker_count=6:u32 brokers=7:[]BrokerLoadInfo "
    "assignment_strategy=8:str",
    "BrokerLoadInfo": "broker_id=1:u64 load=2:f64 topic_count=3:u32 is_overloaded=4:bool "
    "is_underloaded=5:bool",
    "RebalanceRequest": "dry_run=1:bool max_moves=2:u32?",
    "RebalanceResponse": "success=1:bool moves_executed=2:u32 proposed_moves=3:[]ProposedMove "
    "error_message=4:str",
    "ProposedMove": "topic_name=1:str from_broker=2:u64 to_broker=3:u64 estimated_load=4:f64 "
    "reason=5:str",
    "ClusterStatusResponse": "leader_id=1:u64 current_term=2:u64 last_applied=3:u64 "
    "voters=4:[]u64 learners=5:[]u64 self_node_id=6:u64 raft_addr=7:str",
    "AddNodeRequest": "addr=1:str node_id=2:u64",
    "AddNodeResponse": "success=1:bool node_id=2:u64 message=3:str",
    "PromoteNodeRequest": "node_id=1:u64",
    "RemoveNodeRequest": "node_id=1:u64",
    "PromoteNodeResponse": _DONE,
    "RemoveNodeResponse": _DONE,
    "RoleDefinition": "name=1:str permissions=2:[]str system=3:bool",
    "CreateRoleRequest": "role=1:RoleDefinition",
    "GetRoleResponse": "role=1:RoleDefinition",
    "GetRoleRequest": _NAME,
    "DeleteRoleRequest": _NAME,
    "ListRolesResponse": "roles=1:[]RoleDefinition",
    "BindingDefinition": "id=1:str principal_type=2:str principal_name=3:str "
    "role_names=4:[]str scope=5:str resource_name=6:str",
    "CreateBindingRequest": "binding=1:BindingDefinition",
    "GetBindingResponse": "binding=1:BindingDefinition",
    "GetBindingRequest": _BINDING_KEY,
    "DeleteBindingRequest": _BINDING_KEY,
    "ListBindingsRequest": "scope=1:str resource_name=2:str",
    "ListBindingsResponse": "bindings=1:[]BindingDefinition",
}

ADMIN_ENUMS = {
    "DispatchStrategy": "NonReliable=0 Reliable=1",
    "SubscriptionBackoffStrategy": "Fixed=0 Exponential=1",
    "SubscriptionPoisonPolicy": "DeadLetter=0 Block=1 Drop=2",
}

ADMIN_METHODS = [
    "BrokerAdmin/ListBrokers Empty -> BrokerListResponse",
    "BrokerAdmin/GetLeaderBroker Empty -> BrokerResponse",
    "BrokerAdmin/ListNamespaces Empty -> NamespaceListResponse",
    "BrokerAdmin/UnloadBroker UnloadBrokerRequest -> UnloadBrokerResponse",
    "BrokerAdmin/ActivateBroker ActivateBrokerRequest -> ActivateBrokerResponse",
    "BrokerAdmin/GetClusterBalance ClusterBalanceRequest -> ClusterBalanceResponse",
    "BrokerAdmin/TriggerRebalance RebalanceRequest -> RebalanceResponse",
    "ClusterAdmin/ClusterStatus Empty -> ClusterStatusResponse",
    "ClusterAdmin/AddNode AddNodeRequest -> AddNodeResponse",
    "ClusterAdmin/PromoteNode PromoteNodeRequest -> PromoteNodeResponse",
    "ClusterAdmin/RemoveNode RemoveNodeRequest -> RemoveNodeResponse",
    "NamespaceAdmin/GetNamespaceTopics NamespaceRequest -> TopicListResponse",
    "NamespaceAdmin/GetNamespacePolicies NamespaceRequest -> PolicyResponse",
    "NamespaceAdmin/CreateNamespace NamespaceRequest -> NamespaceResponse",
    "NamespaceAdmin/DeleteNamespace NamespaceRequest -> NamespaceResponse",
    "TopicAdmin/ListNamespaceTopics NamespaceRequest -> TopicInfoListResponse",
    "TopicAdmin/ListBrokerTopics BrokerRequest -> TopicInfoListResponse",
    "TopicAdmin/CreateTopic NewTopicRequest -> TopicResponse",
    "TopicAdmin/CreatePartitionedTopic PartitionedTopicRequest -> TopicResponse",
    "TopicAdmin/DeleteTopic TopicRequest -> TopicResponse",
    "TopicAdmin/UnloadTopic TopicRequest -> TopicResponse",
    "TopicAdmin/ListSubscriptions TopicRequest -> SubscriptionListResponse",
    "TopicAdmin/Unsubscribe SubscriptionRequest -> SubscriptionResponse",
    "TopicAdmin/DescribeTopic DescribeTopicRequest -> DescribeTopicResponse",
    "TopicAdmin/SetSubscriptionFailurePolicy SetSubscriptionFailurePolicyRequest -> "
    "SubscriptionResponse",
    "TopicAdmin/GetSubscriptionFailurePolicy GetSubscriptionFailurePolicyRequest -> "
    "GetSubscriptionFailurePolicyResponse",
    "TopicAdmin/SetSubscriptionDispatchConfig SetSubscriptionDispatchConfigRequest -> "
    "SubscriptionResponse",
    "TopicAdmin/GetSubscriptionDispatchConfig GetSubscriptionDispatchConfigRequest -> "
    "GetSubscriptionDispatchConfigResponse",
    "SecurityAdmin/CreateRole CreateRoleRequest -> CreateRoleResponse",
    "SecurityAdmin/GetRole GetRoleRequest -> GetRoleResponse",
    "SecurityAdmin/ListRoles Empty -> ListRolesResponse",
    "SecurityAdmin/DeleteRole DeleteRoleRequest -> DeleteRoleResponse",
    "SecurityAdmin/CreateBinding CreateBindingRequest -> CreateBindingResponse",
    "SecurityAdmin/GetBinding GetBindingRequest -> GetBindingResponse",
    "SecurityAdmin/ListBindings ListBindingsRequest -> ListBindingsResponse",
    "SecurityAdmin/ListAllBindings Empty -> ListBindingsResponse",
    "SecurityAdmin/DeleteBinding DeleteBindingRequest -> DeleteBindingResponse",
]

EDGE_MESSAGES = {
    "RegisterEdgeRequest": "edge_name=1:str topics=2:[]EdgeTopicDeclaration",
    "EdgeTopicDeclaration": "topic_name=1:str schema_subject=2:str?",
    "RegisterEdgeResponse": "success=1:bool message=2:str config_version=3:u64 "
    "topics=4:[]TopicRegistrationResult",
    "TopicRegistrationResult": "topic_name=1:str topic_created=2:bool schema_resolved=3:bool "
    "schema=4:ResolvedSchema? error=5:str",
    "ResolvedSchema": "subject=1:str schema_id=2:u64 schema_version=3:u32 schema_type=4:str "
    "schema_definition=5:bytes fingerprint=6:str compatibility_mode=7:str",
    "EdgeHeartbeatRequest": "edge_name=1:str config_version=2:u64",
    "EdgeHeartbeatResponse": "changed=1:bool config_version=2:u64 changes=3:[]EdgeChange",
    "EdgeChange": "topic_name=1:str change_type=2:EdgeChange.ChangeType "
    "schema=3:ResolvedSchema? detail=4:str",
    "ReplicateBatch": "topic_name=1:str messages=2:[]danube.StreamMessage batch_last_offset=3:u64",
    "ReplicateAck": "topic_name=1:str acked_offset=2:u64",
}

EDGE_ENUMS = {"EdgeChange.ChangeType": "SCHEMA_UPDATED=0 SCHEMA_REMOVED=1 TOPIC_REMOVED=2"}

EDGE_METHODS = [
    "EdgeReplicatorService/RegisterEdge RegisterEdgeRequest -> RegisterEdgeResponse",
    "EdgeReplicatorService/EdgeHeartbeat EdgeHeartbeatRequest -> EdgeHeartbeatResponse",
    "EdgeReplicatorService/ReplicateData stream ReplicateBatch -> stream ReplicateAck",
]
